# The manual page and the completion, which the program prints, with the programs of the houses.
# SPDX-License-Identifier: Apache-2.0
if(NOT CMAKE_CROSSCOMPILING)
  foreach(text manual completion)
    add_custom_command(OUTPUT ${text}.txt VERBATIM
      DEPENDS pride $<TARGET_NAME_IF_EXISTS:pride_lab> $<TARGET_NAME_IF_EXISTS:pride_coordinator>
      COMMAND $<TARGET_FILE:pride> ${text} > ${text}.txt)
  endforeach()
  add_custom_target(pride_manual ALL DEPENDS manual.txt completion.txt)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/manual.txt
          DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 RENAME pride.1)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/completion.txt
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME pride)
endif()
