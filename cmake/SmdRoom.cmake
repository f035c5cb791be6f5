# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# smd_add_room(<folder> [DEPENDS <target>...] [PUBLIC_HEADERS <file>...] [FOLDERS <name>...]
#              [EXCLUDE <regex>])
#
# One room of native/ as one target, smd_<folder> with slashes turned into underscores: a static
# library of every *.cc in the folder, or an INTERFACE library while the room has no source.
#
# The walls between the rooms are made here. A target does not get native/ as its include path, but
# a directory of its own in the build tree that holds nothing but symbolic links to the headers of
# this room, and those of the rooms in DEPENDS. `#include "engine/group/communicator.h"` from native/common is
# therefore a missing file, not a matter of review. Which room may see which is the DEPENDS lists in
# native/*/CMakeLists.txt, and nowhere else.
#
#   DEPENDS         rooms whose headers this one may include
#   PUBLIC_HEADERS  headers that other rooms may include; default: all. Linked at configure time.
#   FOLDERS         folders below this one that belong to the room: one target, one namespace, and no
#                   walls between them
#   EXCLUDE         sources of the folder that the room compiles in a way of its own

set(SMD_NATIVE_DIR "${PROJECT_SOURCE_DIR}/native")
set(SMD_ROOMS_DIR "${PROJECT_BINARY_DIR}/rooms")

function(_smd_link target_path link_path)
  get_filename_component(_parent "${link_path}" DIRECTORY)
  file(MAKE_DIRECTORY "${_parent}")
  file(CREATE_LINK "${target_path}" "${link_path}" SYMBOLIC)
endfunction()

function(smd_add_room folder)
  cmake_parse_arguments(PARSE_ARGV 1 ROOM "" "EXCLUDE" "DEPENDS;PUBLIC_HEADERS;FOLDERS")
  string(REPLACE "/" "_" name "smd_${folder}")
  set(source_dir "${SMD_NATIVE_DIR}/${folder}")

  set(patterns "${source_dir}/*.cc")
  foreach(inner IN LISTS ROOM_FOLDERS)
    list(APPEND patterns "${source_dir}/${inner}/*.cc")
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  if(ROOM_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${ROOM_EXCLUDE}")
  endif()

  # Rebuilt at every configure, so that a header that became private does not linger as a link.
  set(private_root "${SMD_ROOMS_DIR}/${name}/private")
  set(public_root "${SMD_ROOMS_DIR}/${name}/public")
  file(REMOVE_RECURSE "${SMD_ROOMS_DIR}/${name}")
  file(MAKE_DIRECTORY "${private_root}" "${public_root}")
  if(ROOM_PUBLIC_HEADERS)
    _smd_link("${source_dir}" "${private_root}/${folder}")
    foreach(header IN LISTS ROOM_PUBLIC_HEADERS)
      _smd_link("${source_dir}/${header}" "${public_root}/${folder}/${header}")
    endforeach()
  else()
    _smd_link("${source_dir}" "${public_root}/${folder}")
  endif()

  if(sources)
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} PUBLIC "${public_root}" PRIVATE "${private_root}")
    target_link_libraries(${name} PUBLIC ${ROOM_DEPENDS} Threads::Threads PRIVATE smd_options)
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE "${public_root}")
    target_link_libraries(${name} INTERFACE ${ROOM_DEPENDS})
  endif()
endfunction()
