// The planner's version, as CMake's project() states it.
#ifndef RELIBRA_PLANNER_SERVICE_SERVER_VERSION_H_
#define RELIBRA_PLANNER_SERVICE_SERVER_VERSION_H_

namespace relibra::server {

inline constexpr char kVersion[] = RELIBRA_VERSION;

}  // namespace relibra::server

#endif  // RELIBRA_PLANNER_SERVICE_SERVER_VERSION_H_
