// llama.cpp's template code as one source. Compiled by get.sh, with the folder of its sources among the
// includes.
#include "jinja/lexer.cpp"
#undef FILENAME
#include "jinja/parser.cpp"
#undef FILENAME
#include "jinja/runtime.cpp"
#undef FILENAME
#include "jinja/string.cpp"
#include "jinja/value.cpp"
#include "unicode.cpp"
