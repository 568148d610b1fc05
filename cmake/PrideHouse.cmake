# What coordinator/ and lab/ begin with: the library, of this build or installed.
# SPDX-License-Identifier: Apache-2.0
include(${CMAKE_CURRENT_LIST_DIR}/PrideTargets.cmake)

# pride_house(component part...): finds the library's parts, of which all but `program` may be missing.
# Installs of this folder go into Debian's package of this component.
macro(pride_house component)
  if(NOT TARGET pride::core)
    find_package(pride 0.1 REQUIRED COMPONENTS program OPTIONAL_COMPONENTS ${ARGN})
    set(PRIDE_VERSION ${pride_VERSION})
    string(REGEX MATCHALL "[0-9]+" version ${PRIDE_VERSION})
    list(GET version 1 PRIDE_VERSION_MINOR)
    list(GET version 2 PRIDE_VERSION_PATCH)
  endif()
  set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME ${component})
endmacro()

# pride_program(target source...): a program of a house.
function(pride_program target)
  add_executable(${target} ${ARGN})
  pride_target(${target})
  pride_light(${target})
  target_link_libraries(${target} PRIVATE pride::program)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PRIDE_PROGRAM_DIR})
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/pride)
endfunction()
