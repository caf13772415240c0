# What `cmake --install` and `cpack` put where. Three components, each a Debian package:
#   planner  relibra-planner, relibra, their man pages, completions, protos, systemd unit, Slurm launcher,
#            and what deploy/ has for Prometheus, Grafana and Kubernetes
#   agent    relibra-agent, librelibra_agent.so.1, librelibra_eplb.so
#   dev      headers, static libraries, and the package config for find_package(relibra)
include(CMakePackageConfigHelpers)

set(RELIBRA_LIBRARIES  # exported as relibra::core, relibra::agent, …
  relibra_proto relibra_kernels relibra_core relibra_static_placement relibra_baseline relibra_trace
  relibra_transport relibra_agent relibra_agent_c)
set(headers ${CMAKE_INSTALL_INCLUDEDIR}/relibra)

install(TARGETS relibra relibra-planner RUNTIME COMPONENT planner)
install(TARGETS relibra-agent RUNTIME COMPONENT agent)
install(TARGETS relibra_eplb LIBRARY COMPONENT agent)

foreach(library IN LISTS RELIBRA_LIBRARIES)
  string(REPLACE "relibra_" "" exported ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${exported})
  # Headers are included as in this repository: "planner_service/core/plan.h", "relibra/v1/plan.pb.h".
  target_include_directories(${library} PUBLIC $<INSTALL_INTERFACE:${headers}>
                                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
install(TARGETS ${RELIBRA_LIBRARIES} EXPORT relibra
        ARCHIVE COMPONENT dev
        LIBRARY COMPONENT agent NAMELINK_COMPONENT dev)
install(DIRECTORY kernels planner_service worker_agent DESTINATION ${headers} COMPONENT dev
        FILES_MATCHING PATTERN "*.h"
        PATTERN "cli" EXCLUDE PATTERN "server" EXCLUDE PATTERN "selftest" EXCLUDE)
install(FILES worker_agent/agent_c.h DESTINATION ${headers} COMPONENT dev)
install(DIRECTORY ${CMAKE_BINARY_DIR}/proto/relibra/v1 DESTINATION ${headers} COMPONENT dev
        FILES_MATCHING PATTERN "*.pb.h")
install(DIRECTORY proto/relibra DESTINATION ${CMAKE_INSTALL_DATADIR}/relibra/proto
        COMPONENT planner FILES_MATCHING PATTERN "*.proto")

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/relibra)
install(EXPORT relibra NAMESPACE relibra:: FILE relibraTargets.cmake DESTINATION ${config_folder}
        COMPONENT dev)
configure_package_config_file(scripts/cmake/relibraConfig.cmake.in
  ${CMAKE_BINARY_DIR}/relibraConfig.cmake INSTALL_DESTINATION ${config_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/relibraConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/relibraConfig.cmake ${CMAKE_BINARY_DIR}/relibraConfigVersion.cmake
        DESTINATION ${config_folder} COMPONENT dev)

# Man pages are the programs' own --help, so that they cannot disagree.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND AND NOT RELIBRA_SANITIZE)
  foreach(program relibra relibra-planner relibra-agent)
    set(page ${CMAKE_BINARY_DIR}/man/${program}.1)
    add_custom_command(
      OUTPUT ${page}
      COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/deploy/man/help_to_man.py
              $<TARGET_FILE:${program}> ${PROJECT_VERSION} ${page}
      DEPENDS ${program} ${CMAKE_SOURCE_DIR}/deploy/man/help_to_man.py
      VERBATIM)
    list(APPEND man_pages ${page})
    set(component planner)
    if(program STREQUAL "relibra-agent")
      set(component agent)
    endif()
    install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component})
  endforeach()
  add_custom_target(relibra_man ALL DEPENDS ${man_pages})
endif()

set(completions ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
foreach(program relibra relibra-planner)
  install(FILES deploy/completions/relibra.bash DESTINATION ${completions} RENAME ${program}
          COMPONENT planner)
endforeach()
install(FILES deploy/completions/relibra.bash DESTINATION ${completions} RENAME relibra-agent
        COMPONENT agent)
install(FILES deploy/completions/_relibra DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions
        COMPONENT planner)
install(FILES deploy/systemd/relibra-planner.service DESTINATION lib/systemd/system
        COMPONENT planner)
install(FILES deploy/systemd/relibra-agent@.service DESTINATION lib/systemd/system COMPONENT agent)
install(PROGRAMS deploy/slurm/relibra-slurm-launch DESTINATION ${CMAKE_INSTALL_BINDIR}
        COMPONENT planner)
install(DIRECTORY deploy/slurm DESTINATION ${CMAKE_INSTALL_DATADIR}/relibra COMPONENT planner
        FILES_MATCHING PATTERN "*.sbatch")
install(DIRECTORY deploy/prometheus deploy/grafana deploy/kubernetes DESTINATION ${CMAKE_INSTALL_DATADIR}/relibra
        COMPONENT planner)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/relibra-planner RENAME copyright
        COMPONENT planner)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/relibra-agent RENAME copyright
        COMPONENT agent)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/librelibra-dev RENAME copyright
        COMPONENT dev)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "ReLibra maintainers <maintainers@relibra.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL planner agent dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PLANNER_PACKAGE_NAME relibra-planner)
set(CPACK_COMPONENT_PLANNER_DESCRIPTION "ReLibra's planner service and the relibra command")
set(CPACK_DEBIAN_PLANNER_PACKAGE_CONTROL_EXTRA
    ${CMAKE_SOURCE_DIR}/deploy/debian/postinst ${CMAKE_SOURCE_DIR}/deploy/debian/prerm)
set(CPACK_DEBIAN_AGENT_PACKAGE_NAME relibra-agent)
set(CPACK_COMPONENT_AGENT_DESCRIPTION "ReLibra's worker agent: daemon, C library and EPLB library")
set(CPACK_DEBIAN_AGENT_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/deploy/debian/triggers)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME librelibra-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEV_DESCRIPTION "ReLibra's headers, libraries and CMake package config")
string(JOIN ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "relibra-agent (= ${PROJECT_VERSION})" libgrpc++-dev
       libprotobuf-dev libabsl-dev libucx-dev nlohmann-json3-dev libzip-dev pkg-config)
include(CPack)
