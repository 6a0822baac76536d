#include "models/grammar/string_formats.h"

#include <algorithm>
#include <iterator>

namespace tramontane {
namespace {

// Days that there are, in years of four digits.
#define TM_DATE                                                                                            \
  "([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]" \
  "|1[0-9]|2[0-8]))|([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)"
#define TM_TIME \
  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define TM_DURATION_TIME "T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S)"
#define TM_UUID(version, variant) \
  "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-" version "[0-9a-fA-F]{3}-" variant "[0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
#define TM_UUID_OF(version) TM_UUID(version, "[89abAB]")
#define TM_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define TM_IPV4 TM_BYTE "\\." TM_BYTE "\\." TM_BYTE "\\." TM_BYTE
#define TM_IPV6 "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"

// Names of hosts: no two hyphens side by side, which announce another alphabet, and a letter to begin the
// last label, so that no reader takes the whole for an address of numbers. A label has at most 63 characters
// and the name 253.
#define TM_LABEL "[A-Za-z0-9](-?[A-Za-z0-9]){0,15}"
#define TM_LAST_LABEL "[A-Za-z](-?[A-Za-z0-9]){0,15}"
#define TM_HOST "(" TM_LABEL "\\.){0,3}" TM_LAST_LABEL
#define TM_LABEL_SHAPE "[A-Za-z0-9](-?[A-Za-z0-9])*"
#define TM_HOST_SHAPE "(" TM_LABEL_SHAPE "\\.)*[A-Za-z](-?[A-Za-z0-9])*"

// Letters, and none of the names that no mail goes to: arpa, invalid, local, localhost, onion, test.
#define TM_TOP_DOMAIN                                                                                      \
  "([A-Za-z]{2,3}|([B-HJKMNP-SU-Zb-hjkmnp-su-z][A-Za-z]|[Aa][A-QS-Za-qs-z]|[Ii][A-MO-Za-mo-z]|[Ll][A-NP-Z" \
  "a-np-z]|[Oo][A-MO-Za-mo-z]|[Tt][A-DF-Za-df-z])[A-Za-z]{2,10}|info|tech)"
#define TM_EMAIL "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,10}){0,2}@(" TM_LABEL "\\.){1,3}" TM_TOP_DOMAIN
#define TM_EMAIL_SHAPE "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@(" TM_LABEL_SHAPE "\\.)+" TM_TOP_DOMAIN

#define TM_EMAIL_SIMPLE "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]+\\.)+[A-Za-z]{2,3}"

#define TM_URI "https?://" TM_HOST "(/[A-Za-z0-9_.~/-]{0,128})?"
#define TM_URI_SHAPE                   \
  "[a-z][a-z0-9+.-]+://" TM_HOST_SHAPE \
  "(:[1-9][0-9]{0,3})?(/[A-Za-z0-9_.~-]*)*(\\?[A-Za-z0-9_.~=&/+-]*)?(#[A-Za-z0-9_.~=&/-]*)?"
#define TM_URI_OUTER "[A-Za-z][A-Za-z0-9+.-]*:[^\\s]*"

#define TM_POINTER "(/[A-Za-z0-9_./-]{0,64})?"

// Expressions that every reader of expressions takes: characters, classes and groups of those, repeated.
#define TM_REGEX_CLASS "\\[\\^?(a-z|A-Z|0-9|[A-Za-z0-9_.]){1,3}\\]"
#define TM_REGEX_PARTS(counts) \
  "(([A-Za-z0-9_ @:,;=%&~-]|\\\\[dwsDWS.*+?()|^$/]|\\.|" TM_REGEX_CLASS ")([*+?]|\\{[1-9]\\})?){" counts "}"
#define TM_REGEX_GROUP "\\((\\?:)?" TM_REGEX_PARTS("1,4") "(\\|" TM_REGEX_PARTS("1,4") "){0,2}\\)[*+?]?"
#define TM_REGEX "\\^?" TM_REGEX_PARTS("0,8") "(" TM_REGEX_GROUP TM_REGEX_PARTS("0,8") "){0,2}\\$?"

constexpr StringFormat kFormats[] = {
    {"date", TM_DATE, nullptr, nullptr, kUnbounded, "[0-9]{4}-[0-9]{2}-[0-9]{2}"},
    {"time", TM_TIME, nullptr, nullptr, kUnbounded, "[0-9]{2}:[0-9]{2}:[0-9]{2}.*"},
    {"date-time", TM_DATE "T" TM_TIME, nullptr, nullptr, kUnbounded, "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt].*"},
    {"duration", "P([0-9]{1,6}D(" TM_DURATION_TIME ")?|" TM_DURATION_TIME ")", nullptr, nullptr, kUnbounded,
     "P.+"},
    {"uuid", TM_UUID("[0-9a-fA-F]", "[0-9a-fA-F]")},
    {"uuid1", TM_UUID_OF("1")},
    {"uuid3", TM_UUID_OF("3")},
    {"uuid4", TM_UUID_OF("4")},
    {"uuid5", TM_UUID_OF("5")},
    {"uuid6", TM_UUID_OF("6")},
    {"uuid7", TM_UUID_OF("7")},
    {"uuid8", TM_UUID_OF("8")},
    {"ipv4", TM_IPV4},
    {"ipv6", TM_IPV6, nullptr, nullptr, kUnbounded, "[0-9A-Fa-f:.]{2,45}"},
    {"hostname", TM_HOST, TM_HOST_SHAPE, nullptr, 63, "[^\\s/@]{1,253}"},
    {"idn-hostname", TM_HOST, TM_HOST_SHAPE, nullptr, 63},
    {"email", TM_EMAIL, TM_EMAIL_SHAPE, TM_EMAIL_SIMPLE, 64, "[^\\s]+@[^\\s]+"},
    {"idn-email", TM_EMAIL, TM_EMAIL_SHAPE, TM_EMAIL_SIMPLE, 64},
    {"uri", TM_URI, TM_URI_SHAPE, nullptr, kUnbounded, TM_URI_OUTER},
    {"uri-reference", TM_URI, TM_URI_SHAPE},
    {"iri", TM_URI, TM_URI_SHAPE},
    {"iri-reference", TM_URI, TM_URI_SHAPE},
    {"uri-template", TM_URI, TM_URI_SHAPE},
    {"json-pointer", TM_POINTER},
    {"relative-json-pointer", "(0|[1-9]{1,3})(#|" TM_POINTER ")"},
    {"regex", TM_REGEX},
};

}  // namespace

const StringFormat* FindStringFormat(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                   [name](const StringFormat& format) { return format.name == name; });
  return found == std::end(kFormats) ? nullptr : found;
}

}  // namespace tramontane
