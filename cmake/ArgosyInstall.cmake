# `cmake --install`: the `argosy` program, and the C++ API as a package for find_package(argosy).
#
#   find_package(argosy REQUIRED)
#   target_link_libraries(my_program PRIVATE argosy::argosy)     # argosy::testing too, for test clusters
#
# The package also sets ARGOSY_COMMAND, the program. The libraries are static: a user program needs nothing of Argosy at run time.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(_headers ${CMAKE_INSTALL_INCLUDEDIR}/argosy-${PROJECT_VERSION})
set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/argosy)

set_target_properties(argosy_api PROPERTIES EXPORT_NAME argosy)
set_target_properties(argosy_testing PROPERTIES EXPORT_NAME testing)
install(TARGETS argosy_base argosy_async argosy_wire argosy_store argosy_worker argosy_api argosy_testing
  EXPORT argosyTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${_headers})
install(DIRECTORY runtime/api/include/argosy DESTINATION ${_headers})
install(DIRECTORY runtime/base/ DESTINATION ${_headers}/runtime/base FILES_MATCHING PATTERN "*.h")
install(EXPORT argosyTargets NAMESPACE argosy:: DESTINATION ${_package})
configure_package_config_file(cmake/argosyConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/argosyConfig.cmake INSTALL_DESTINATION ${_package}
  PATH_VARS CMAKE_INSTALL_BINDIR)
# 0.x: each minor version may change the API.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/argosyConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/argosyConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/argosyConfigVersion.cmake
  DESTINATION ${_package})
