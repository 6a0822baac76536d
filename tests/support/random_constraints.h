// Random schemas and regular expressions of everything that docs/structured.md says is supported, and judges
// of what they produce. The judges read the definitions, not the grammars: nothing is shared with
// models/grammar/. Plain functions; any thread.
#pragma once

#include <random>
#include <string>

namespace tramontane {

std::string RandomSchema(std::mt19937& random);  // as JSON text
std::string RandomRegex(std::mt19937& random);
std::string RandomFormatSchema(std::mt19937& random);  // of a string with a format, and nothing else

// "" when `text` is JSON that is valid under the schema, else what is wrong. REQUIRES: a schema as above.
std::string SchemaFault(const std::string& schema, const std::string& text);
// "" when the expression matches `text` as a whole.
std::string RegexFault(const std::string& pattern, const std::string& text);

}  // namespace tramontane
