# The rooms of which the CUDA plugin holds copies.
set(megatron_plugin_rooms base device tensor kernels)

# megatron_room(NAME [COLD] [WITHOUT folder...] [LOWER room...] [LIBRARIES target...]): the static library of src/NAME, with
# every source below it except in folders that this build leaves out. It links the named rooms, all of strictly lower
# rank, so that an upward call does not link. Its target is megatron_NAME, known to other projects as megatron::NAME.
# COLD: users wait for none of the room's own loops, so it is compiled with -O1, which takes two thirds of -O3's time.
function(megatron_room name)
  cmake_parse_arguments(ROOM "COLD" "" "WITHOUT;LOWER;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  foreach(folder ${ROOM_WITHOUT})
    list(FILTER sources EXCLUDE REGEX "/src/${name}/${folder}/")
  endforeach()
  if(NOT sources)
    return()
  endif()
  set(room megatron_${name})
  add_library(${room} STATIC ${sources})
  add_library(megatron::${name} ALIAS ${room})
  megatron_export(${room} ${name})
  if(name IN_LIST megatron_plugin_rooms)
    set_target_properties(${room} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    megatron_precompile(${room} plugin)
  else()
    megatron_precompile(${room} program)
  endif()
  megatron_unity(${room})
  target_compile_features(${room} PUBLIC cxx_std_20)
  target_include_directories(${room} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/megatron>)
  target_link_libraries(${room} PUBLIC fmt::fmt ${ROOM_LIBRARIES} PRIVATE $<BUILD_INTERFACE:megatron_compiler>)
  if(ROOM_COLD)
    target_compile_options(${room} PRIVATE $<$<CONFIG:Release>:-O1> -Wno-maybe-uninitialized)  # false alarms at -O1
  endif()
  foreach(lower ${ROOM_LOWER})
    if(TARGET megatron_${lower})
      target_link_libraries(${room} PUBLIC megatron_${lower})
    endif()
  endforeach()
endfunction()
