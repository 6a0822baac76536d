// Whether two configs are of models that compute the same: for whoever writes one config as another.
// Any thread; pure.
#pragma once

#include <string>

#include "models/model_config.h"

namespace tramontane {

// Equal but for a few roundings to float.
bool NearlyEqual(double a, double b);

// Whether rotary embeddings with this theta and scaling have the frequencies of the model.
bool SameFrequencies(const ModelConfig& model, double theta, const RopeScaling& scaling);

// "": they compute the same and end answers at the same ids; else what differs, for people.
std::string WhatDiffers(const ModelConfig& wanted, const ModelConfig& read);

}  // namespace tramontane
