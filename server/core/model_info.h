// What a server says of its model, its engine's limits and its load. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine.h"
#include "models/tokenizer/tokenizer.h"
#include "server/call/rpc_error.h"
#include "server/call/served_model.h"
#include "tramontane/v1/inference.pb.h"

namespace tramontane {

// NOT_FOUND where a model of that name is not served. "": any is meant.
RpcError CheckModelName(const ServedModel& model, const std::string& name);

RpcError GetModel(const ServedModel& model, const v1::GetModelRequest& proto, v1::GetModelResponse* response);
// What the engine bounds; the service adds its own.
void EngineLimitsToProto(const ServedModel& model, v1::Limits* proto);
void LoadToProto(const EngineLoad& load, v1::GetLoadResponse* response);

// A piece that is not UTF-8 (a model file may hold any bytes) still has to travel as text.
std::string PieceText(const Tokenizer& tokenizer, int32_t id);

}  // namespace tramontane
