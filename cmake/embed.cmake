# megatron_embed_page(ROOM FOLDER): the files of FOLDER/page become constants of the program
# (FOLDER/page_sources.cpp.in). Scripts are concatenated in the order of their names here. A changed file causes a new
# configuration.
function(megatron_embed_page room folder)
  if(NOT TARGET megatron_${room})
    return()
  endif()
  set(PAGE_SCRIPT "")
  foreach(name series.js chart.js page.js)
    file(READ ${folder}/page/${name} text)
    string(APPEND PAGE_SCRIPT "${text}")
  endforeach()
  file(READ ${folder}/page/page.html PAGE_HTML)
  file(READ ${folder}/page/page.css PAGE_CSS)
  file(GLOB files ${folder}/page/*)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  configure_file(${folder}/page_sources.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/${room}_page_sources.cpp @ONLY)
  target_sources(megatron_${room} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${room}_page_sources.cpp)
endfunction()

# megatron_embed_chat(ROOM FOLDER): FOLDER/page/chat.html with its style and scripts becomes a constant of the program
# (FOLDER/chat_page.cpp.in).
function(megatron_embed_chat room folder)
  if(NOT TARGET megatron_${room})
    return()
  endif()
  file(READ ${folder}/page/chat.html CHAT_PAGE)
  file(READ ${folder}/page/chat.css style)
  file(READ ${folder}/page/markdown.js markdown)
  file(READ ${folder}/page/chat.js chat)
  string(REPLACE "@CHAT_STYLE@" "${style}" CHAT_PAGE "${CHAT_PAGE}")
  string(REPLACE "@CHAT_SCRIPT@" "${markdown}\n${chat}" CHAT_PAGE "${CHAT_PAGE}")
  file(GLOB files ${folder}/page/*)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  configure_file(${folder}/chat_page.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/${room}_chat_page.cpp @ONLY)
  target_sources(megatron_${room} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${room}_chat_page.cpp)
endfunction()

# megatron_embed_flags(ROOM FOLDER): the tables of FOLDER become constants of the program (FOLDER/embedded.cpp.in).
function(megatron_embed_flags room folder)
  if(NOT TARGET megatron_${room})
    return()
  endif()
  file(READ ${folder}/table.tsv TABLE)
  file(READ ${folder}/older.tsv OLDER)
  file(READ ${folder}/reasons.tsv REASONS)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${folder}/table.tsv ${folder}/older.tsv ${folder}/reasons.tsv)
  configure_file(${folder}/embedded.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/${room}_flag_tables.cpp @ONLY)
  target_sources(megatron_${room} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${room}_flag_tables.cpp)
endfunction()

# megatron_embed_recipes(ROOM FOLDER SOURCE): the files FOLDER/*.yaml and FOLDER/models/*.json, including those of
# `twins`, become constants of the program, named by their paths without extension (SOURCE/embedded_recipes.cpp.in).
function(megatron_embed_recipes room folder source)
  if(NOT TARGET megatron_${room})
    return()
  endif()
  megatron_list_files(RECIPES ${folder} yaml)
  megatron_list_files(MODELS ${folder}/models json)
  configure_file(${source}/embedded_recipes.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/${room}_recipes.cpp @ONLY)
  target_sources(megatron_${room} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${room}_recipes.cpp)
endfunction()

# megatron_list_files(VARIABLE FOLDER END): {"a", R"(content of FOLDER/a.END)"}, ... sorted by name; those of FOLDER/twins
# follow.
function(megatron_list_files variable folder end)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*.${end})
  file(GLOB twins CONFIGURE_DEPENDS ${folder}/twins/*.${end})
  set(list "")
  foreach(file ${files} ${twins})
    file(RELATIVE_PATH name ${folder} ${file})
    string(REGEX REPLACE "[.]${end}$" "" name ${name})
    file(READ ${file} text)
    string(APPEND list "    {\"${name}\", R\"~file~(${text})~file~\"},\n")
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files} ${twins})
  set(${variable} "${list}" PARENT_SCOPE)
endfunction()
