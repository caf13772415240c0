# bash completion for relibra, relibra-planner and relibra-agent. It asks the program's own --help,
# so it always knows the flags of the version that is installed.
_relibra() {
  local word=${COMP_WORDS[COMP_CWORD]} i
  local -a path=("${COMP_WORDS[0]}")
  for ((i = 1; i < COMP_CWORD; ++i)); do # the subcommands typed so far
    [[ ${COMP_WORDS[i]} =~ ^[a-z][a-z0-9-]*$ && ${COMP_WORDS[i - 1]} != --* ]] || continue
    path+=("${COMP_WORDS[i]}")
  done
  local words
  words=$("${path[@]}" --help 2>/dev/null | awk '
    /^[A-Z].*:$/ { below = ($0 == "Subcommands:") }
    below && /^  [a-z]/ { print $1 }
    match($0, /^  +(-[A-Za-z],)?--[a-z0-9-]+/) {
      flag = substr($0, RSTART, RLENGTH); sub(/^ +(-[A-Za-z],)?/, "", flag); print flag }')
  if [[ ${COMP_WORDS[COMP_CWORD - 1]} == --* && $word != -* ]]; then words= ; fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  # The value of a flag, or nothing known: a file name.
  if ((${#COMPREPLY[@]} == 0)); then compopt -o default 2>/dev/null || true; fi
}
complete -F _relibra relibra relibra-planner relibra-agent
