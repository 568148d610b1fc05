# Install rules and the CMake package that find_package(pride) reads.
# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)

set(PRIDE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/pride)

# Installs one library and its export file, <export>Targets.cmake.
function(pride_install_library target export)
  install(TARGETS ${target} EXPORT ${export}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(EXPORT ${export} NAMESPACE pride:: FILE ${export}Targets.cmake
          DESTINATION ${PRIDE_PACKAGE_DIR})
endfunction()

pride_install_library(pride_core prideCore)

# One export file per optional part: a user of core then needs neither MPI nor torch. The headers of
# a part that was not built stay out.
set(PRIDE_INSTALLED_PARTS "")
set(header_filters "")
if(TARGET pride_train)
  foreach(name io data)
    set_target_properties(pride_${name} PROPERTIES EXPORT_NAME train_${name})
    install(TARGETS pride_${name} EXPORT pride_train ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endforeach()
endif()
if(TARGET pride_coord_client)  # the messages and calls go with it; the coordinator itself is a program
  foreach(name coord_proto coord_grpc)
    set_target_properties(pride_${name} PROPERTIES EXPORT_NAME ${name})
    install(TARGETS pride_${name} EXPORT pride_coord ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endforeach()
  set_target_properties(pride_coord_client PROPERTIES EXPORT_NAME coord)
  pride_install_library(pride_coord_client pride_coord)
  string(APPEND PRIDE_INSTALLED_PARTS ", coord")
else()
  list(APPEND header_filters PATTERN "pride/coord" EXCLUDE)
endif()
foreach(part mpi torch c10d train c c_mpi c_coord)
  if(TARGET pride_${part})
    set_target_properties(pride_${part} PROPERTIES EXPORT_NAME ${part})
    pride_install_library(pride_${part} pride_${part})
    string(APPEND PRIDE_INSTALLED_PARTS ", ${part}")
  else()
    list(APPEND header_filters PATTERN "${part}_*.h" EXCLUDE PATTERN "pride/${part}" EXCLUDE
                               PATTERN "pride/${part}.h" EXCLUDE)
  endif()
endforeach()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/pride DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" ${header_filters})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# for programs in C, which may know nothing of CMake; it moves with the folder that it is installed in
file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(PRIDE_PKGCONFIG_PREFIX "\${pcfiledir}/${up}")
foreach(dir INCLUDEDIR LIBDIR)
  set(PRIDE_PKGCONFIG_${dir} "\${prefix}${CMAKE_INSTALL_${dir}}")  # `up` ends in a slash
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(PRIDE_PKGCONFIG_${dir} ${CMAKE_INSTALL_${dir}})
  endif()
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/pride.pc.in ${PROJECT_BINARY_DIR}/pride.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/pride.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# a static core needs Highway at the user's link
get_target_property(core_type pride_core TYPE)
string(COMPARE EQUAL "${core_type}" "STATIC_LIBRARY" PRIDE_CORE_IS_STATIC)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/prideConfig.cmake.in
  ${PROJECT_BINARY_DIR}/prideConfig.cmake INSTALL_DESTINATION ${PRIDE_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/prideConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/prideConfig.cmake ${PROJECT_BINARY_DIR}/prideConfigVersion.cmake
        DESTINATION ${PRIDE_PACKAGE_DIR})
