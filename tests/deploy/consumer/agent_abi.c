/* The C ABI from C: an agent that is told nothing refuses to join, and says why. */
#include <relibra/agent_c.h>
#include <stdio.h>

int main(void) {
  relibra_agent_config config;
  relibra_agent_config_init(&config, sizeof(config));
  relibra_agent* agent = relibra_agent_new(&config);
  if (agent == NULL) return 1;
  const int code = relibra_agent_join(agent, NULL, 0, 0.1);
  printf("%d %s\n", code, relibra_agent_last_error(agent));
  relibra_agent_free(agent);
  return code == RELIBRA_OK;
}
