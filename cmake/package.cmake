# What `cmake --install` and cpack lay down beside the program, the library and its header.
include(GNUInstallDirs)
set(MILLRACE_DOC ${CMAKE_INSTALL_DATADIR}/doc/millrace)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/CHANGELOG.md ${CMAKE_SOURCE_DIR}/README.md
              ${CMAKE_SOURCE_DIR}/packaging/serve.conf DESTINATION ${MILLRACE_DOC})
install(FILES ${CMAKE_SOURCE_DIR}/src/app/web/licenses.txt DESTINATION ${MILLRACE_DOC} RENAME page-licenses.txt)
# Man pages are there where packaging/make_man.sh was run first, as `make install` and `make package` do.
install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
# Completions likewise, by packaging/make_completions.sh. Debian's zsh looks elsewhere than others.
set(completions ${CMAKE_BINARY_DIR}/completions)
install(FILES ${completions}/millrace DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions OPTIONAL)
install(FILES ${completions}/_millrace DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions OPTIONAL)
install(FILES ${completions}/_millrace DESTINATION /usr/share/zsh/vendor-completions COMPONENT service OPTIONAL EXCLUDE_FROM_ALL)
install(FILES ${completions}/millrace.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d OPTIONAL)

# Packages alone: the bundled model, so that what was installed can be tried at once, and the notices of what is linked in.
if(MILLRACE_PORTABLE)
  install(FILES ${CMAKE_SOURCE_DIR}/models/demo-moe-q4_k_m.gguf DESTINATION ${CMAKE_INSTALL_DATADIR}/millrace)
  install(FILES ${CMAKE_SOURCE_DIR}/build/static/THIRD_PARTY.txt DESTINATION ${MILLRACE_DOC})
endif()
# The .deb alone: the service.
set(BINDIR /usr/bin)
configure_file(packaging/millrace.service ${CMAKE_BINARY_DIR}/millrace.service @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/millrace.service DESTINATION /lib/systemd/system COMPONENT service EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_SOURCE_DIR}/packaging/serve.conf DESTINATION /etc/millrace COMPONENT service EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION /usr/share/doc/millrace RENAME copyright
        COMPONENT service EXCLUDE_FROM_ALL)

# What runs on fewer devices than it might says so in its version, and lies in a folder of its own. Debian takes 0.1.0~cpu for
# older than 0.1.0, so that the whole program replaces it.
set(kind "")
if(NOT MILLRACE_HAS_CUDA)
  set(kind -cpu)
elseif(NOT CMAKE_CUDA_ARCHITECTURES STREQUAL every_architecture)
  set(kind -part)
endif()

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME millrace)
set(CPACK_PACKAGE_VENDOR "Millrace")
set(CPACK_PACKAGE_CONTACT "The Millrace developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Runs language models that are larger than memory")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_FILE_NAME millrace-${PROJECT_VERSION}${kind}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_SOURCE_DIR}/build/packages${kind})
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/cmake/package_format.cmake)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
string(REPLACE - ~ CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION}${kind})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DEPENDS passwd)  # useradd
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Millrace keeps in RAM and VRAM what fits of a model, streams the rest from the disk while it
computes, and gives the same tokens either way. It serves the APIs of OpenAI, Ollama and Anthropic.")
set(deb ${CMAKE_SOURCE_DIR}/packaging/deb)
file(WRITE ${CMAKE_BINARY_DIR}/conffiles "/etc/millrace/serve.conf\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${deb}/postinst ${deb}/prerm ${deb}/postrm ${CMAKE_BINARY_DIR}/conffiles)
include(CPack)
