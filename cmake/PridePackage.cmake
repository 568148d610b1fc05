# The Debian packages that cpack makes: pride (the library, its program, headers, examples, documents),
# pride-lab and pride-coordinator (their programs, libraries, headers and documents).
# SPDX-License-Identifier: Apache-2.0
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/examples
        DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN "__pycache__" EXCLUDE)
# where links between the pages find them
foreach(house lab coordinator)
  if(TARGET pride_${house})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${house}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR}/${house}
            COMPONENT ${house})
    file(GLOB pages ${PROJECT_SOURCE_DIR}/${house}/*.md)
    install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${house}
            COMPONENT ${house})
  endif()
endforeach()
if(TARGET pride_lab)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/lab/examples ${PROJECT_SOURCE_DIR}/lab/experiments
          DESTINATION ${CMAKE_INSTALL_DOCDIR}/lab COMPONENT lab PATTERN "__pycache__" EXCLUDE)
endif()

set(summary "data-parallel training with about one bit per parameter on the wire")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME pride)
set(CPACK_PACKAGE_CONTACT "The pride authors <pride@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${summary})
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/package)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL library)
foreach(house lab coordinator)
  if(TARGET pride_${house})
    list(APPEND CPACK_COMPONENTS_ALL ${house})
  endif()
endforeach()
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/src/c)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME pride)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "${summary}: library and program")
# a reference BLAS is many times slower; headers and examples need the rest
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS libopenblas0-pthread)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "pride-lab, pride-coordinator, libhwy-dev, libtorch-dev, openmpi-bin")
set(CPACK_DEBIAN_LAB_PACKAGE_NAME pride-lab)
set(CPACK_DEBIAN_LAB_DESCRIPTION "${summary}: trainer, experiments, reports")
set(CPACK_DEBIAN_LAB_PACKAGE_DEPENDS "pride (= ${PROJECT_VERSION})")
# librsvg2-bin: for `pride report --png`
set(CPACK_DEBIAN_LAB_PACKAGE_RECOMMENDS "libopenblas0-pthread, librsvg2-bin")
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_NAME pride-coordinator)
set(CPACK_DEBIAN_COORDINATOR_DESCRIPTION "${summary}: coordinator of workers that come and go")
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_DEPENDS "pride (= ${PROJECT_VERSION})")
include(CPack)
