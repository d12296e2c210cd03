# Compiles the sources of a target together, a few at a time, so that their includes are read and their templates
# instantiated once instead of for each file. MEGATRON_UNITY=OFF compiles each alone, which is better while editing.
option(MEGATRON_UNITY "Compile small sources of a room, or of a test program, together" ON)

# megatron_unity(TARGET): batches of a folder's sources; a new one begins at every file whose name's hash says so, about
# every twelfth, so that a new file joins or divides one batch and leaves the others unchanged. A folder with a single
# source shares those of the folder above it. Sources that Highway includes once per instruction set stay alone. Names in
# anonymous namespaces must differ within a batch.
function(megatron_unity target)
  if(NOT MEGATRON_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "[.]cpp$")
  list(SORT sources)
  foreach(source ${sources})
    get_filename_component(folder ${source} DIRECTORY)
    list(APPEND sources_of_${folder} ${source})
  endforeach()
  set(batch 0)
  foreach(source ${sources})
    file(STRINGS ${source} alone REGEX "hwy/foreach_target" LIMIT_COUNT 1)
    if(alone)
      continue()
    endif()
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${source})
    string(MD5 hash ${name})
    get_filename_component(folder ${source} DIRECTORY)
    list(LENGTH sources_of_${folder} count)
    if(count EQUAL 1)                                      # a family of models: with its neighbours
      get_filename_component(folder ${folder} DIRECTORY)
    endif()
    if(hash MATCHES "^(0|1[0-4])" OR NOT DEFINED batch_of_${folder})
      math(EXPR batch "${batch} + 1")
      set(batch_of_${folder} ${batch})
    endif()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${batch_of_${folder}})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
