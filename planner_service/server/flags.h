// The command line of relibra-planner.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_FLAGS_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_FLAGS_H_

#include <optional>
#include <string>

#include "planner_service/server/planner_server.h"

namespace relibra::server {

struct Flags {
  ServerOptions server;
  // Where to write the ports, as lines "grpc PORT" and "metrics PORT"; empty: nowhere.
  std::string port_file;
  std::string log_level = "info";
};

// Reads the words of the command line. When the program should not go on (--help, --version, a
// word that is wrong), the help or a one-line error is printed and the exit status returned.
std::optional<int> ParseFlags(int argc, char** argv, Flags& flags);

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_FLAGS_H_
