#include "models/grammar/schema_keywords.h"

#include <algorithm>
#include <iterator>

namespace tramontane {
namespace {

constexpr Keyword kKeywords[] = {
    {"title", KeywordGroup::kAnnotation},
    {"description", KeywordGroup::kAnnotation},
    {"default", KeywordGroup::kAnnotation},
    {"example", KeywordGroup::kAnnotation},
    {"examples", KeywordGroup::kAnnotation},
    {"deprecated", KeywordGroup::kAnnotation},
    {"readOnly", KeywordGroup::kAnnotation},
    {"writeOnly", KeywordGroup::kAnnotation},
    {"discriminator", KeywordGroup::kAnnotation},
    {"contentEncoding", KeywordGroup::kAnnotation},
    {"contentMediaType", KeywordGroup::kAnnotation},
    {"$comment", KeywordGroup::kAnnotation},
    {"$schema", KeywordGroup::kAnnotation},
    {"$defs", KeywordGroup::kDefinitions},
    {"definitions", KeywordGroup::kDefinitions},
    {"$ref", KeywordGroup::kApplied},
    {"const", KeywordGroup::kValues},
    {"enum", KeywordGroup::kValues},
    {"anyOf", KeywordGroup::kApplied},
    {"oneOf", KeywordGroup::kApplied},
    {"allOf", KeywordGroup::kApplied},
    {"type", KeywordGroup::kType},
    {"minLength", KeywordGroup::kString},
    {"maxLength", KeywordGroup::kString},
    {"pattern", KeywordGroup::kString},
    {"format", KeywordGroup::kString},
    {"minimum", KeywordGroup::kNumber},
    {"maximum", KeywordGroup::kNumber},
    {"exclusiveMinimum", KeywordGroup::kNumber},
    {"exclusiveMaximum", KeywordGroup::kNumber},
    {"items", KeywordGroup::kArray},
    {"prefixItems", KeywordGroup::kArray},
    {"minItems", KeywordGroup::kArray},
    {"maxItems", KeywordGroup::kArray},
    {"properties", KeywordGroup::kObject},
    {"required", KeywordGroup::kObject},
    {"additionalProperties", KeywordGroup::kObject},
    {"propertyNames", KeywordGroup::kObject},
    {"minProperties", KeywordGroup::kObject},
    {"maxProperties", KeywordGroup::kObject},
    {"not", KeywordGroup::kRefused},
    {"if", KeywordGroup::kRefused},
    {"then", KeywordGroup::kRefused},
    {"else", KeywordGroup::kRefused},
    {"dependencies", KeywordGroup::kRefused},
    {"dependentRequired", KeywordGroup::kRefused},
    {"dependentSchemas", KeywordGroup::kRefused},
    {"patternProperties", KeywordGroup::kRefused},
    {"unevaluatedProperties", KeywordGroup::kRefused},
    {"unevaluatedItems", KeywordGroup::kRefused},
    {"additionalItems", KeywordGroup::kRefused},
    {"contains", KeywordGroup::kRefused},
    {"minContains", KeywordGroup::kRefused},
    {"maxContains", KeywordGroup::kRefused},
    {"uniqueItems", KeywordGroup::kRefused},
    {"multipleOf", KeywordGroup::kRefused},
    {"contentSchema", KeywordGroup::kRefused},
    {"nullable", KeywordGroup::kRefused},
    {"$id", KeywordGroup::kRefused},
    {"$anchor", KeywordGroup::kRefused},
    {"$dynamicRef", KeywordGroup::kRefused},
    {"$dynamicAnchor", KeywordGroup::kRefused},
    {"$recursiveRef", KeywordGroup::kRefused},
    {"$recursiveAnchor", KeywordGroup::kRefused},
    {"$vocabulary", KeywordGroup::kRefused},
};

}  // namespace

const Keyword* FindKeyword(std::string_view name) {
  const auto* found = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                   [name](const Keyword& keyword) { return keyword.name == name; });
  return found == std::end(kKeywords) ? nullptr : found;
}

}  // namespace tramontane
