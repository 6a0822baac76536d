// The gateway's bounds are the engine's: what a body is refused for here, the engine would refuse there.
#include "server/call/field_limits.h"

#include <gtest/gtest.h>

#include "engine/request/limits.h"
#include "models/grammar/constraint.h"
#include "server/call/served_model.h"

namespace tramontane {
namespace {

TEST(FieldLimits, AsBuiltAreNoStricterThanAServerAsBuilt) {
  const FieldLimits fields;
  const EngineLimits engine;
  const ConstraintLimits constraints;
  EXPECT_GE(fields.max_choices, engine.max_choices);
  EXPECT_EQ(fields.max_stop_strings, engine.max_stop_strings);
  EXPECT_EQ(fields.max_stop_bytes, engine.max_stop_bytes);
  EXPECT_EQ(fields.max_stop_token_ids, engine.max_stop_token_ids);
  EXPECT_EQ(fields.max_logit_bias, engine.max_logit_bias);
  EXPECT_EQ(fields.max_constraint_bytes, constraints.max_bytes);
  EXPECT_EQ(fields.max_constraint_choices, constraints.max_choices);
  EXPECT_EQ(fields.max_answer_bytes, ServedModel().max_answer_bytes);
}

}  // namespace
}  // namespace tramontane
