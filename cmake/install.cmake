# `cmake --install`: the program, the libraries, their headers, and a package for find_package(megatron) with the
# targets megatron::base, ..., megatron::training (docs/library.md). The package finds the same libraries as the build
# did.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
option(MEGATRON_INSTALL "cmake --install puts the program, libraries and headers in place" ${PROJECT_IS_TOP_LEVEL})
set(megatron_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/megatron)

# megatron_export(TARGET NAME): TARGET is installed as megatron::NAME.
function(megatron_export target name)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  if(MEGATRON_INSTALL)
    install(TARGETS ${target} EXPORT megatron_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()

# Call this once all targets exist.
function(megatron_install)
  if(NOT MEGATRON_INSTALL)
    return()
  endif()
  install(TARGETS megatron RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(TARGET megatron_cuda)                                 # the program opens it from its own folder
    install(TARGETS megatron_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/megatron FILES_MATCHING PATTERN *.h)
  install(EXPORT megatron_targets NAMESPACE megatron:: DESTINATION ${megatron_package_folder})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/megatronConfig.cmake.in
    ${PROJECT_BINARY_DIR}/megatronConfig.cmake INSTALL_DESTINATION ${megatron_package_folder})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/megatronConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/megatronConfig.cmake ${PROJECT_BINARY_DIR}/megatronConfigVersion.cmake
    ${PROJECT_SOURCE_DIR}/cmake/libraries.cmake DESTINATION ${megatron_package_folder})
endfunction()
