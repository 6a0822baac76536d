// The embedded model, breeze: the files of models/breeze/weights, which the assembler put into the program
// (embedded_model.S). Main thread.
#pragma once

namespace tramontane {

inline constexpr char kEmbeddedModelName[] = "breeze";
inline constexpr char kEmbeddedModelFolder[] = "built-in:breeze";

// From now on kEmbeddedModelFolder can be read as a model's folder.
void AddEmbeddedModel();

}  // namespace tramontane
