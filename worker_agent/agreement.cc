#include "worker_agent/agreement.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace relibra::agent {
namespace {

constexpr int kWords = 4;

std::string RoundName(uint64_t round) {
  switch (static_cast<Round>(round)) {
    case Round::kOffer:
      return "offer";
    case Round::kReady:
      return "ready";
    case Round::kConfirm:
      return "confirm";
  }
  return absl::StrCat("unknown round ", round);
}

}  // namespace

uint64_t PlanFingerprint(const StepId& id, const std::string& digest) {
  const std::string text = absl::StrCat(id.step, "/", id.policy_version, "/", id.pass, "/", digest);
  uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash == 0 ? 1 : hash;
}

absl::StatusOr<Verdict> Vote(transport::Transport& transport, const Ballot& ballot,
                             absl::Time deadline) {
  const uint64_t mine[kWords] = {static_cast<uint64_t>(ballot.round), ballot.yes ? 1u : 0u,
                                 ballot.plan, ballot.placement};
  absl::StatusOr<std::vector<uint64_t>> all = transport.AllGather(mine, deadline);
  if (!all.ok()) {
    return absl::Status(all.status().code(),
                        absl::StrCat("round '", RoundName(mine[0]),
                                     "' of the agreement: ", all.status().message()));
  }
  Verdict verdict{.agreed = true, .reason = ""};
  const auto word = [&](int rank, int i) { return (*all)[rank * kWords + i]; };
  for (int r = 0; r < transport.size(); ++r) {
    if (word(r, 0) != mine[0]) {
      return absl::InternalError(absl::StrCat("rank ", r, " is in round '", RoundName(word(r, 0)),
                                              "' of the agreement, rank ", transport.rank(),
                                              " in '", RoundName(mine[0]), "'"));
    }
    if (word(r, 3) != word(0, 3)) {
      return absl::InternalError(
          absl::StrCat("rank ", r, " has other homes than rank 0: the group is split"));
    }
    if (!verdict.agreed) continue;
    if (word(r, 1) == 0) {
      verdict = {false,
                 absl::StrCat("rank ", r,
                              ballot.round == Round::kOffer ? " holds no plan that it can apply"
                                                            : " is not ready")};
    } else if (word(r, 2) != word(0, 2)) {
      verdict = {false, absl::StrCat("rank ", r, " holds another plan than rank 0")};
    }
  }
  return verdict;
}

}  // namespace relibra::agent
