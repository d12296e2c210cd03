# The rooms of which the CUDA wing holds copies.
set(megatron_wing_rooms base device tensor kernels)

# megatron_room(NAME [WITHOUT wing...] [LOWER room...] [LIBRARIES target...]): the static library of src/NAME, with every
# source below it but those of the wings (folders of it) that this build leaves out. It links the rooms named, which are all
# of strictly lower rank, so that an upward call does not link either.
function(megatron_room name)
  cmake_parse_arguments(ROOM "" "" "WITHOUT;LOWER;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  foreach(wing ${ROOM_WITHOUT})
    list(FILTER sources EXCLUDE REGEX "/src/${name}/${wing}/")
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_library(${name} STATIC ${sources})
  if(name IN_LIST megatron_wing_rooms)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    megatron_precompile(${name} wing)
  else()
    megatron_precompile(${name} program)
  endif()
  target_link_libraries(${name} PUBLIC megatron_settings fmt::fmt ${ROOM_LIBRARIES})
  foreach(lower ${ROOM_LOWER})
    if(TARGET ${lower})
      target_link_libraries(${name} PUBLIC ${lower})
    endif()
  endforeach()
endfunction()
