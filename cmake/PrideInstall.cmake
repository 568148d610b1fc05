# Install rules of the library and the CMake package that find_package(pride) reads. The houses install
# theirs into the same package.
# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)

pride_install(pride_core prideCore)

# One export file per optional part: a user of core then needs neither MPI nor torch. The headers of
# a part that was not built stay out.
set(header_filters "")
foreach(part mpi torch c c_mpi)
  if(TARGET pride_${part})
    set_target_properties(pride_${part} PROPERTIES EXPORT_NAME ${part})
    pride_install(pride_${part} pride_${part})
  else()
    list(APPEND header_filters PATTERN "${part}_*.h" EXCLUDE PATTERN "pride/${part}" EXCLUDE)
  endif()
endforeach()
pride_install(pride_c_static pride_c_static)
if(TARGET pride_program)
  install(TARGETS pride_files EXPORT pride_program ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  pride_install(pride_program pride_program)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/apps/program ${PROJECT_BINARY_DIR}/apps/program/include/program
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pride-program FILES_MATCHING PATTERN "*.h"
          PATTERN "program/include" EXCLUDE)
endif()

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
