// Quantised weights in safetensors: every form gives the numbers that its own tools or its published layout
// give (tests/golden/make_quantized_goldens.py), bit for bit; what cannot be read is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "kernels/core/block_types.h"
#include "models/opened_model.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

struct Form {
  const char* folder;
  Format format;  // of rows of 64
};
std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.folder; }

const Form kForms[] = {
    {"ct_int4", Format::InGroups(DType::kInt4, 5, DType::kBf16)},
    {"ct_int4_zero_points", Format::InGroups(DType::kInt4, 5, DType::kF32, /*zero_points=*/true)},
    {"ct_int8_packed", Format::InGroups(DType::kInt8, 6, DType::kF16)},
    {"ct_int8", Format::InGroups(DType::kInt8, 6, DType::kBf16)},
    {"ct_fp8_channel", Format::InGroups(DType::kFp8E4M3, 6, DType::kBf16)},
    {"ct_fp8_tensor", Format::InGroups(DType::kFp8E4M3, 6, DType::kF32, false, /*rows_of_scale=*/2)},
    {"awq", Format::InGroups(DType::kInt4, 5, DType::kF16, /*zero_points=*/true)},
    {"gptq_int4", Format::InGroups(DType::kInt4, 5, DType::kF16, /*zero_points=*/true)},
    {"gptq_int8", Format::InGroups(DType::kInt8, 5, DType::kF16, /*zero_points=*/true)},
    {"gptq_v2_channel", Format::InGroups(DType::kInt4, 6, DType::kF16, /*zero_points=*/true)},
    {"fp8_blocks", Format::InGroups(DType::kFp8E4M3, 6, DType::kF32, false, /*rows_of_scale=*/2)},
    {"mistral_fp8", Format::InGroups(DType::kFp8E4M3, 6, DType::kBf16)},
    {"gptq_desc_act", Format::InGroups(DType::kInt4, 5, DType::kF16, /*zero_points=*/true)},
    {"gptq_int8_desc_act", Format::InGroups(DType::kInt8, 5, DType::kF16, /*zero_points=*/true)},
    {"gptq_desc_act_experts", Format::InGroups(DType::kInt4, 5, DType::kF16, /*zero_points=*/true)},
    {"ct_actorder", Format::InGroups(DType::kInt4, 5, DType::kF32)},
    {"ct_actorder_tied", Format::InGroups(DType::kInt4, 5, DType::kF32)},
};

std::string PathOf(const std::string& form, const std::string& file = "") {
  return std::string(TRAMONTANE_SOURCE_DIR) + "/tests/golden/quantized/" + form + (file.empty() ? "" : "/") +
         file;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string Sha256(const std::vector<float>& values) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(values.data()), values.size() * sizeof(float), digest);
  std::string text;
  for (const unsigned char byte : digest) {
    char hex[4];
    std::snprintf(hex, sizeof(hex), "%02x", byte);
    text += hex;
  }
  return text;
}

// The whole of a matrix in f32, read `rows` rows at a time.
std::vector<float> ValuesOf(const CodedMatrix& matrix, const TensorSpec& spec, int64_t rows) {
  std::vector<float> values;
  std::vector<std::byte> blocks;
  for (int64_t begin = 0; begin < spec.rows; begin += rows) {
    const int64_t count = std::min(rows, spec.rows - begin);
    blocks.assign(static_cast<size_t>(matrix.format().Bytes(count * spec.columns)), std::byte{0xff});
    const Status read = matrix.Read(begin, count, blocks.data());
    EXPECT_TRUE(read.ok()) << read;
    values.resize(static_cast<size_t>((begin + count) * spec.columns));
    DecodeBlocks(matrix.format(), blocks.data(), count * spec.columns,
                 values.data() + static_cast<size_t>(begin * spec.columns));
  }
  if (matrix.column_order() == nullptr) return values;
  const std::vector<float> as_read = values;
  for (int64_t i = 0; i < spec.rows * spec.columns; ++i) {
    const int64_t k = i % spec.columns;
    values[static_cast<size_t>(i - k + matrix.column_order()[k])] = as_read[static_cast<size_t>(i)];
  }
  return values;
}

class QuantizedForm : public testing::TestWithParam<Form> {};

TEST_P(QuantizedForm, GivesTheNumbersOfItsTools) {
  const auto opened = OpenModel(PathOf(GetParam().folder), {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_TRUE(opened->weight_files.ok()) << opened->weight_files.status();
  const json hashes = json::parse(ReadAll(PathOf(GetParam().folder, "weights.json")));
  size_t compared = 0;
  for (const WeightSpec& weight : opened->weights) {
    for (const TensorSpec& spec : weight.parts) {
      const auto stored = opened->weight_files->Find(spec);
      ASSERT_TRUE(stored.ok()) << stored.status();
      EXPECT_EQ(stored->coded.has_value(), hashes.contains(spec.name)) << spec.name;
      if (!stored->coded) continue;
      ++compared;
      if (spec.columns == 64) {
        EXPECT_EQ(FormatName(stored->format()), FormatName(GetParam().format)) << spec.name;
      }
      for (const int64_t rows : {spec.rows, int64_t{7}}) {
        EXPECT_EQ(Sha256(ValuesOf(*stored->coded, spec, rows)), hashes[spec.name])
            << spec.name << " by " << rows;
      }
      std::vector<float> values(static_cast<size_t>(spec.elements()));
      ASSERT_TRUE(stored->coded->ReadValues(0, spec.rows, values.data()).ok());
      EXPECT_EQ(Sha256(values), hashes[spec.name]) << spec.name;
      const bool reordered = std::string(GetParam().folder).find("act") != std::string::npos;
      EXPECT_EQ(stored->coded->column_order() != nullptr, reordered) << spec.name;
    }
  }
  EXPECT_EQ(compared, hashes.size());
  EXPECT_GE(compared, 7u);
}

// Every array of a matrix is one that the model needs, or is known to be without effect.
TEST_P(QuantizedForm, LeavesNoTensorOver) {
  auto opened = OpenModel(PathOf(GetParam().folder), {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  const size_t warnings = opened->config.warnings.size();
  const Status checked = CheckTensors(opened->weights, *opened->weight_files, opened->config);
  EXPECT_TRUE(checked.ok()) << checked;
  EXPECT_EQ(opened->config.warnings.size(), warnings);
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedForm, testing::ValuesIn(kForms),
                         [](const auto& info) { return std::string(info.param.folder); });

// ---- what is wrong with files -------------------------------------------------------------------

// A form with its files changed.
class ChangedForm {
 public:
  explicit ChangedForm(const std::string& form) : native_(form.starts_with("mistral")) {
    config = json::parse(ReadAll(PathOf(form, config_file())));
    const std::string file = ReadAll(PathOf(form, weight_file()));
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    header = json::parse(file.substr(8, length));
    data = file.substr(8 + length);
  }

  std::string config_file() const { return native_ ? "params.json" : "config.json"; }
  std::string weight_file() const { return native_ ? "consolidated.safetensors" : "model.safetensors"; }

  void Rename(const std::string& from, const std::string& to) {
    header[to] = header.at(from);
    header.erase(from);
  }
  char* Data(const std::string& name) {
    return data.data() + header.at(name)["data_offsets"][0].get<size_t>();
  }
  // At the end of the file.
  void Add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
           const std::string& bytes) {
    header[name] = {
        {"dtype", dtype}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }

  // Gives bytes that belong to no tensor to one outside the layers.
  void Fill() {
    std::vector<std::pair<size_t, size_t>> ranges;
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") ranges.emplace_back(entry["data_offsets"][0], entry["data_offsets"][1]);
    }
    std::sort(ranges.begin(), ranges.end());
    size_t reached = 0;
    for (const auto& [begin, end] : ranges) {
      if (begin > reached) {
        header["filler." + std::to_string(begin)] = {
            {"dtype", "U8"}, {"shape", {begin - reached}}, {"data_offsets", {reached, begin}}};
      }
      reached = end;
    }
  }

  void WriteTo(const TempFolder& folder) const {
    folder.Write(config_file(), config.dump());
    folder.Write(weight_file(), SafetensorsWriter::FileOf(header.dump(), data));
  }

  // What is wrong with it: in its config, its tensors or their numbers.
  Status Error() const {
    const TempFolder folder;
    WriteTo(folder);
    auto opened = OpenModel(folder.path(), {});
    TM_RETURN_IF_ERROR(opened.status());
    TM_RETURN_IF_ERROR(opened->weight_files.status());
    TM_RETURN_IF_ERROR(CheckTensors(opened->weights, *opened->weight_files, opened->config));
    for (const WeightSpec& weight : opened->weights) {
      for (const TensorSpec& spec : weight.parts) {
        TM_ASSIGN_OR_RETURN(const StoredWeight stored, opened->weight_files->Find(spec));
        if (!stored.coded) continue;
        std::vector<std::byte> blocks(static_cast<size_t>(stored.format().Bytes(spec.elements())));
        TM_RETURN_IF_ERROR(stored.coded->Read(0, spec.rows, blocks.data()));
      }
    }
    return {};
  }

  json config;
  json header;
  std::string data;

 private:
  bool native_;
};

constexpr char kQ[] = "model.layers.0.self_attn.q_proj.";

// The numbers of a model's matrix, in f32.
std::vector<float> ValuesIn(const std::string& path, const std::string& name) {
  const auto opened = OpenModel(path, {});
  EXPECT_TRUE(opened.ok()) << opened.status();
  if (!opened.ok()) return {};
  for (const WeightSpec& weight : opened->weights) {
    for (const TensorSpec& spec : weight.parts) {
      if (spec.name != name) continue;
      const auto stored = opened->weight_files->Find(spec);
      EXPECT_TRUE(stored.ok() && stored->coded.has_value()) << stored.status();
      std::vector<float> values(static_cast<size_t>(spec.elements()));
      EXPECT_TRUE(stored->coded->ReadValues(0, spec.rows, values.data()).ok());
      return values;
    }
  }
  ADD_FAILURE() << path << " has no " << name;
  return {};
}

TEST(QuantizedFiles, ArraysThatAreMissingAreNamed) {
  const std::pair<const char*, const char*> arrays[] = {
      {"ct_int4", "weight_packed"},
      {"ct_int4", "weight_scale"},
      {"ct_int4_zero_points", "weight_zero_point"},
      {"ct_int8", "weight_scale"},
      {"ct_fp8_channel", "weight"},
      {"awq", "scales"},
      {"awq", "qzeros"},
      {"gptq_int4", "qweight"},
      {"gptq_int4", "qzeros"},
      {"gptq_desc_act", "g_idx"},
      {"fp8_blocks", "weight_scale_inv"},
  };
  for (const auto& [form, array] : arrays) {
    SCOPED_TRACE(std::string(form) + " without " + array);
    ChangedForm changed(form);
    changed.Rename(std::string(kQ) + array, "elsewhere");
    EXPECT_THAT(changed.Error().message(),
                AllOf(HasSubstr("model.safetensors"), HasSubstr(kQ), HasSubstr("is missing")));
  }
  ChangedForm mistral("mistral_fp8");
  mistral.Rename("layers.0.attention.wq.qscale_weight", "elsewhere");
  EXPECT_THAT(mistral.Error().message(), HasSubstr("layers.0.attention.wq.qscale_weight is missing"));
}

// Releases have one for a matrix. One for each row is in the order of the rows, those of q and k too.
TEST(QuantizedFiles, MistralsScaleMayBeOneForEachRow) {
  const std::string stem = "layers.0.attention.wq.";
  const ChangedForm whole("mistral_fp8");
  const TempFolder whole_folder;
  whole.WriteTo(whole_folder);
  std::vector<float> want = ValuesIn(whole_folder.path(), stem + "weight");
  const int64_t rows = whole.header[stem + "weight"]["shape"][0];
  const auto with_scales = [&](const std::vector<int64_t>& shape) {
    ChangedForm changed("mistral_fp8");
    uint16_t scale = 0;
    std::memcpy(&scale, changed.Data(stem + "qscale_weight"), sizeof(scale));
    std::string scales;
    for (int64_t row = 0; row < shape[0]; ++row) {  // a step of the exponent is twice the scale
      const auto of_row = static_cast<uint16_t>(scale + (row % 3 << 7));
      scales.append(reinterpret_cast<const char*>(&of_row), sizeof(of_row));
    }
    changed.header.erase(stem + "qscale_weight");
    changed.Add(stem + "qscale_weight", "BF16", shape, scales);
    changed.Fill();
    return changed;
  };
  ASSERT_EQ(static_cast<int64_t>(want.size()) % rows, 0);
  const size_t columns = want.size() / static_cast<size_t>(rows);
  for (size_t i = 0; i < want.size(); ++i) want[i] *= static_cast<float>(1 << (i / columns % 3));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{rows}, {rows, 1}}) {
    const TempFolder folder;
    with_scales(shape).WriteTo(folder);
    EXPECT_EQ(ValuesIn(folder.path(), stem + "weight"), want);
  }
  EXPECT_THAT(with_scales({rows / 2}).Error().message(), HasSubstr(stem + "qscale_weight has shape"));
}

TEST(QuantizedFiles, ArraysOfAnotherShapeOrTypeAreNamed) {
  const std::pair<const char*, const char*> arrays[] = {
      {"ct_int4", "weight_packed"},
      {"ct_int4", "weight_scale"},
      {"ct_int4_zero_points", "weight_zero_point"},
      {"ct_int8", "weight"},
      {"ct_fp8_channel", "weight"},
      {"awq", "qweight"},
      {"awq", "qzeros"},
      {"awq", "scales"},
      {"gptq_int4", "g_idx"},
      {"gptq_int8", "qweight"},
      {"fp8_blocks", "weight_scale_inv"},
  };
  for (const auto& [form, array] : arrays) {
    SCOPED_TRACE(std::string(form) + " " + array);
    const std::string name = std::string(kQ) + array;
    ChangedForm changed(form);
    json& shape = changed.header[name]["shape"];
    shape = json::array(
        {1, 1, shape.size() == 2 ? shape[0].get<int>() * shape[1].get<int>() : shape[0].get<int>()});
    EXPECT_THAT(changed.Error().message(), AllOf(HasSubstr(name + " has shape"), HasSubstr("must be")));
    ChangedForm typed(form);
    const std::string dtype = typed.header[name]["dtype"];
    typed.header[name]["dtype"] = dtype == "I32"                      ? "U32"
                                  : dtype == "F16" || dtype == "BF16" ? "I16"
                                  : dtype == "F32"                    ? "I32"
                                                                      : "U8";
    EXPECT_THAT(typed.Error().message(), AllOf(HasSubstr(name), HasSubstr("has dtype")));
  }
}

TEST(QuantizedFiles, ShapesThatDisagreeAreRefused) {
  ChangedForm changed("ct_int4");
  const int64_t shape[] = {64, 72};
  std::memcpy(changed.Data(std::string(kQ) + "weight_shape"), shape, sizeof(shape));
  EXPECT_THAT(changed.Error().message(),
              AllOf(HasSubstr("weight_shape says [64, 72]"), HasSubstr("[64, 64]")));
}

// Kernels have groups of one size.
TEST(QuantizedFiles, GroupsOfUnequalColumnsAreRefusedByName) {
  for (const char* form : {"gptq_int4", "gptq_desc_act", "ct_actorder"}) {
    SCOPED_TRACE(form);
    ChangedForm changed(form);
    const std::string name = std::string(kQ) + (form[0] == 'c' ? "weight_g_idx" : "g_idx");
    int32_t group = 0;
    int column = 0;
    while (group == 0) std::memcpy(&group, changed.Data(name) + 4 * column++, sizeof(group));
    ASSERT_EQ(group, 1);
    const int32_t other = 0;
    std::memcpy(changed.Data(name) + 4 * (column - 1), &other, sizeof(other));
    EXPECT_EQ(changed.Error().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(changed.Error().message(),
                HasSubstr(name + " puts 33 columns into group 0; the limit is the 32 of a group"));
  }
}

TEST(QuantizedFiles, GroupsThatDoNotExistAreRefused) {
  for (const int32_t group : {-1, 2, 1 << 30}) {
    ChangedForm changed("gptq_desc_act");
    std::memcpy(changed.Data(std::string(kQ) + "g_idx") + 4 * 3, &group, sizeof(group));
    EXPECT_THAT(changed.Error().message(),
                HasSubstr("g_idx puts column 3 into group " + std::to_string(group) + "; the limit is 1"));
  }
}

// As compressed-tensors leaves it where nothing was reordered.
TEST(QuantizedFiles, WithoutGroupsOfColumnsTheyAreInOrder) {
  ChangedForm changed("ct_int4");
  changed.config["quantization_config"]["config_groups"]["group_0"]["weights"]["actorder"] = "group";
  EXPECT_TRUE(changed.Error().ok()) << changed.Error();
}

TEST(QuantizedFiles, NumbersThatAreNotFiniteAreRefused) {
  ChangedForm scale("ct_int4_zero_points");
  const uint32_t infinity = 0x7f800000;
  std::memcpy(scale.Data(std::string(kQ) + "weight_scale") + 8, &infinity, sizeof(infinity));
  EXPECT_THAT(scale.Error().message(), AllOf(HasSubstr("q_proj.weight_scale"), HasSubstr("not finite")));
  for (const char nan : {'\x7f', '\xff'}) {
    ChangedForm number("fp8_blocks");
    number.Data(std::string(kQ) + "weight")[64 * 64 - 1] = nan;
    EXPECT_THAT(number.Error().message(), AllOf(HasSubstr("q_proj.weight"), HasSubstr("not finite")));
  }
}

// As the first releases in fp8 have them, before transformers read any.
TEST(QuantizedFiles, ScalesInFp8MayBeUnderTheNameOfOthers) {
  ChangedForm changed("fp8_blocks");
  json& config = changed.config["quantization_config"];
  config["ignored_layers"] = config["modules_to_not_convert"];
  config.erase("modules_to_not_convert");
  std::vector<std::string> scales;
  for (const auto& [name, entry] : changed.header.items()) {
    if (name.ends_with(".weight_scale_inv")) scales.push_back(name);
  }
  ASSERT_EQ(scales.size(), 7u);
  for (const std::string& name : scales) changed.Rename(name, name.substr(0, name.size() - 4));
  EXPECT_TRUE(changed.Error().ok()) << changed.Error();
  config["ignored_layers"].push_back("model.layers.0.self_attn.q_proj");
  EXPECT_THAT(changed.Error().message(), HasSubstr("model.layers.0.self_attn.q_proj is quantised, though"));
}

// Of the naive form the type of the weights says what it is.
TEST(QuantizedFiles, TheNaiveFormIsOfIntegersOrOfFloats) {
  for (const char* form : {"ct_int8", "ct_fp8_channel"}) {
    SCOPED_TRACE(form);
    ChangedForm changed(form);
    json& config = changed.config["quantization_config"];
    config["format"] = "naive-quantized";
    config["quantization_status"] = "frozen";
    for (auto& [name, group] : config["config_groups"].items()) group.erase("format");
    EXPECT_TRUE(changed.Error().ok()) << changed.Error();
    changed.Rename(std::string(kQ) + "weight_scale", "elsewhere");
    EXPECT_THAT(changed.Error().message(), HasSubstr("q_proj.weight_scale is missing"));
  }
}

// What has a scale for each of its rows takes less than it would.
TEST(QuantizedFiles, ScalesInF32ThatBf16HoldsAreKeptAsThat) {
  ChangedForm changed("fp8_blocks");
  const std::string name = "model.layers.0.mlp.down_proj.weight_scale_inv";  // [1, 2]
  const float scales[] = {0x1p-7f, -0x1.8p-9f};
  std::memcpy(changed.Data(name), scales, sizeof(scales));
  const TempFolder folder;
  changed.WriteTo(folder);
  const auto opened = OpenModel(folder.path(), {});
  const TensorSpec spec = {
      .name = "model.layers.0.mlp.down_proj.weight", .rows = 64, .columns = 160, .slice = {0, 0, 64}};
  const StoredWeight stored = opened->weight_files->Find(spec).value();
  EXPECT_EQ(FormatName(stored.format()), FormatName(Format::InGroups(DType::kFp8E4M3, 5, DType::kBf16)));
  std::vector<float> values(64 * 160);
  ASSERT_TRUE(stored.coded->ReadValues(0, 64, values.data()).ok());
  const char* codes = changed.Data("model.layers.0.mlp.down_proj.weight");
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], scales[i % 160 / 128] * Fp8E4M3ToFloat(static_cast<uint8_t>(codes[i]))) << i;
  }
}

TEST(QuantizedFiles, AZeroPointBeyondAByteIsRefused) {
  ChangedForm changed("gptq_int8");
  changed.Data(std::string(kQ) + "qzeros")[5] = '\xff';
  EXPECT_THAT(changed.Error().message(), AllOf(HasSubstr("q_proj.qzeros"), HasSubstr("zero point of 256")));
}

TEST(QuantizedFiles, ATensorThatNothingUsesIsRefusedInALayer) {
  for (const char* suffix : {"weight", "weight_g_idx", "bias"}) {
    ChangedForm changed("ct_int4");
    changed.Add(std::string(kQ) + suffix, "BF16", {64, 64}, std::string(2 * 64 * 64, '\0'));
    EXPECT_THAT(changed.Error().message(), AllOf(HasSubstr(std::string(kQ) + suffix), HasSubstr("no part")))
        << suffix;
  }
}

// They would round activations, which is never done.
TEST(QuantizedFiles, ScalesOfActivationsArePassedOver) {
  ChangedForm changed("fp8_blocks");
  changed.Add(std::string(kQ) + "activation_scale", "F32", {}, std::string(4, '\1'));
  EXPECT_TRUE(changed.Error().ok()) << changed.Error();
  ChangedForm mistral("mistral_fp8");
  mistral.Add("layers.0.attention.wq.qscale_act", "F32", {}, std::string(4, '\1'));
  EXPECT_TRUE(mistral.Error().ok()) << mistral.Error();
}

TEST(QuantizedFiles, AModuleThatTheConfigKeepsMustBePlain) {
  ChangedForm changed("ct_int4");
  changed.config["quantization_config"]["ignore"].push_back("model.layers.0.self_attn.q_proj");
  EXPECT_THAT(changed.Error().message(), HasSubstr("model.layers.0.self_attn.q_proj is quantised, though"));
}

TEST(QuantizedFiles, AModuleMayBeKeptByAnExpression) {
  ChangedForm changed("ct_int4");
  json& ignore = changed.config["quantization_config"]["ignore"];
  ignore.push_back("re:.*self_attn.v");  // of the beginning of a name
  EXPECT_THAT(changed.Error().message(), HasSubstr("self_attn.v_proj is quantised, though"));
  ignore.back() = "re:self_attn.v";
  EXPECT_TRUE(changed.Error().ok()) << changed.Error();
  ignore.back() = "Linear";
  EXPECT_THAT(changed.Error().message(), HasSubstr("is quantised, though"));
}

// Which scheme a matrix is of its module says.
TEST(QuantizedFiles, EachMatrixIsOfTheSchemeWhoseTargetItIs) {
  ChangedForm changed("ct_int4");
  json& groups = changed.config["quantization_config"]["config_groups"];
  json wider = groups["group_0"];
  wider["weights"]["num_bits"] = 8;
  constexpr char kOf8Bits[] = "weight_packed has shape [64, 20]; by the config it must be [64, 40]";
  for (const char* target : {"re:.*down_proj", "model.layers.0.mlp.down_proj"}) {
    SCOPED_TRACE(target);
    wider["targets"] = {target};
    groups["a_first_one"] = wider;
    EXPECT_THAT(changed.Error().message(), HasSubstr(kOf8Bits));
  }
  // A name comes before a class, whatever the order of the groups.
  groups["a_first_one"] = groups["group_0"];
  groups["a_first_one"]["targets"] = {"model.layers.0.mlp.down_proj"};
  wider["targets"] = {"re:.*mlp.down_proj"};
  groups["group_0b"] = wider;
  EXPECT_TRUE(changed.Error().ok()) << changed.Error();
  groups.erase("a_first_one");
  EXPECT_THAT(changed.Error().message(), HasSubstr(kOf8Bits));
}

TEST(QuantizedFiles, AModuleThatIsNoTargetMustBePlain) {
  ChangedForm changed("ct_int4");
  json& targets = changed.config["quantization_config"]["config_groups"]["group_0"]["targets"];
  targets = {"re:.*self_attn.*", "re:.*(gate|up)_proj"};
  EXPECT_THAT(changed.Error().message(),
              HasSubstr("model.layers.0.mlp.down_proj is quantised, though it is no target"));
  targets.push_back("re:.*down_proj");
  EXPECT_TRUE(changed.Error().ok()) << changed.Error();
  targets = {"Conv1d"};
  EXPECT_THAT(changed.Error().message(), HasSubstr("is quantised, though it is no target"));
}

// An expression that goes back over a name in every way there is ends at its limit.
TEST(QuantizedFiles, AnExpressionThatTakesTooLongIsRefused) {
  ChangedForm changed("ct_int4");
  json& targets = changed.config["quantization_config"]["config_groups"]["group_0"]["targets"];
  targets = {"Linear", "re:(([a-z_.0-9]+)+)+[!?]"};
  EXPECT_THAT(
      changed.Error().message(),
      AllOf(HasSubstr("re:(([a-z_.0-9]+)+)+[!?] cannot be looked for in model.layers.0.self_attn.q_proj"),
            HasSubstr("the limit is 10000 steps")));
}

// Its numbers have another form than its module's scheme.
TEST(QuantizedFiles, NumbersOfAnotherSchemeAreMissing) {
  ChangedForm changed("ct_int4");
  json& groups = changed.config["quantization_config"]["config_groups"];
  json other = groups["group_0"];
  other["targets"] = {"re:.*down_proj"};
  other["format"] = "int-quantized";
  other["weights"]["num_bits"] = 8;
  groups["group_1"] = other;
  EXPECT_THAT(changed.Error().message(), HasSubstr("tensor model.layers.0.mlp.down_proj.weight is missing"));
}

TEST(QuantizedFiles, WithoutAWordOfTheConfigTheyAreMissing) {
  ChangedForm changed("ct_int4");
  changed.config.erase("quantization_config");
  EXPECT_THAT(changed.Error().message(), HasSubstr("q_proj.weight is missing"));
}

// ---- what configs say ---------------------------------------------------------------------------

struct RefusedKey {
  const char* form;
  const char* pointer;  // below quantization_config, or quantization
  const char* value;
  const char* words;
};

const RefusedKey kRefused[] = {
    {"ct_int4", "/quant_method", "\"bitsandbytes\"", "quant_method is \"bitsandbytes\""},
    {"ct_int4", "/quant_method", "\"hqq\"", "quant_method is \"hqq\""},
    {"ct_int4", "/quant_method", "\"exl2\"", "quant_method is \"exl2\""},
    {"ct_int4", "/quant_method", "\"mxfp4\"", "quant_method is \"mxfp4\""},
    {"ct_int4", "/quant_method", "\"modelopt\"", "quant_method is \"modelopt\""},
    {"ct_int4", "/quant_method", "7", "quant_method is 7"},
    {"ct_int4", "/format", "\"marlin-24\"", "format is \"marlin-24\""},
    {"ct_int4", "/config_groups/group_0/format", "\"nvfp4-pack-quantized\"",
     "group_0.format is \"nvfp4-pack-quantized\""},
    {"ct_int4", "/config_groups/group_0/format", "\"mxfp4-pack-quantized\"", "mxfp4-pack-quantized"},
    {"ct_int4", "/config_groups/group_0/weights/num_bits", "3", "weights.num_bits is 3"},
    {"ct_int4", "/config_groups/group_0/weights/num_bits", "2", "weights.num_bits is 2"},
    {"ct_int4", "/config_groups/group_0/weights/type", "\"float\"", "weights.type is \"float\""},
    {"ct_int4", "/config_groups/group_0/weights/strategy", "\"token\"", "weights.strategy is \"token\""},
    {"ct_int4", "/config_groups/group_0/weights/group_size", "0", "weights.group_size is 0"},
    {"ct_int4", "/config_groups/group_0/weights/actorder", "\"alphabet\"",
     "weights.actorder is \"alphabet\""},
    {"ct_int4", "/config_groups/group_0/targets", "\"Linear\"",
     "group_0.targets is \"Linear\"; it must be a list"},
    {"ct_int4", "/config_groups/group_0/targets", "[\"re:(\"]", "re:( is no regular expression at byte 1"},
    {"ct_int4", "/config_groups/group_1",
     "{\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, \"strategy\": \"channel\"}}",
     "group_1.targets is \"Linear\"; it must be in one group alone"},
    {"ct_int4", "/ignore", "[\"re:[\"]", "re:[ is no regular expression"},
    {"ct_int4", "/config_groups/group_0/weights/dynamic", "true", "weights.dynamic is true"},
    {"ct_int4", "/config_groups/group_0/weights/twist", "2", "weights.twist is 2"},
    {"ct_int4", "/config_groups/group_0/weights", "[]", "group_0.weights is []"},
    {"ct_int4", "/config_groups/group_0/output_activations", "{\"num_bits\": 8}", "output_activations"},
    {"ct_int4", "/config_groups", "{}", "config_groups is {}"},
    {"ct_int4", "/kv_cache_scheme", "{\"num_bits\": 8}", "kv_cache_scheme.type is null"},
    {"ct_int4", "/sparsity_config", "{\"format\": \"sparse-24-bitmask\"}", "sparse-24-bitmask"},
    {"ct_int4", "/transform_config", "{\"config_groups\": {\"u\": 1}}", "transform_config"},
    {"ct_int4", "/quantization_status", "\"calibration\"", "quantization_status is \"calibration\""},
    {"ct_fp8_channel", "/config_groups/group_0/weights/num_bits", "4", "weights.num_bits is 4"},
    {"awq", "/bits", "3", "bits is 3"},
    {"awq", "/version", "\"gemv\"", "version is \"gemv\""},
    {"awq", "/version", "\"marlin\"", "version is \"marlin\""},
    {"awq", "/checkpoint_format", "\"gemv\"", "checkpoint_format is \"gemv\""},
    {"awq", "/desc_act", "true", "desc_act is true"},
    {"awq", "/data_type", "\"fp\"", "data_type is \"fp\""},
    {"awq", "/extra_config", "{\"model.layers.0.mlp\": {\"bits\": 8}}", "model.layers.0.mlp has a form"},
    {"awq", "/hadamard_config", "{\"block\": 32}", "hadamard_config"},
    {"gptq_int4", "/bits", "3", "bits is 3"},
    {"gptq_int4", "/bits", "2", "bits is 2"},
    {"gptq_int4", "/checkpoint_format", "\"marlin\"", "checkpoint_format is \"marlin\""},
    {"gptq_int4", "/format", "\"gptq_v2\"", "format is \"gptq_v2\"; it must be the same as"},
    {"gptq_int4", "/data_type", "\"mx_fp\"", "data_type is \"mx_fp\""},
    {"gptq_int4", "/adapter", "{\"rank\": 8}", "adapter"},
    {"gptq_int4", "/rotation", "\"hadamard\"", "rotation"},
    {"gptq_int4", "/is_marlin_format", "true", "is_marlin_format is true"},
    {"gptq_int4", "/dynamic", "{\"-:.*down.*\": {}}", "dynamic"},
    {"gptq_int4", "/group_size", "\"128\"", "group_size is \"128\""},
    {"fp8_blocks", "/activation_scheme", "\"sometimes\"", "activation_scheme is \"sometimes\""},
    {"fp8_blocks", "/fmt", "\"e5m2\"", "fmt is \"e5m2\""},
    {"fp8_blocks", "/weight_block_size", "[128]", "weight_block_size is [128]"},
    {"mistral_fp8", "/qformat_weight", "\"nvfp4\"", "qformat_weight is \"nvfp4\""},
    {"mistral_fp8", "/qscheme_act", "\"CHANNEL\"", "qscheme_act is \"CHANNEL\""},
    {"mistral_fp8", "/kv", "\"fp8\"", "kv is \"fp8\""},
};

// How a file was made is nothing that its numbers depend on.
TEST(QuantizedConfigs, KeysOfARecipeChangeNothing) {
  const json auto_round = {{"autoround_version", "0.4.2"},
                           {"iters", 200},
                           {"data_type", "int"},
                           {"provider", "auto-round"},
                           {"nsamples", 512},
                           {"seqlen", 2048},
                           {"lr", 0.005},
                           {"enable_quanted_input", true},
                           {"act_bits", 16},
                           {"low_gpu_mem_usage", true},
                           {"scale_dtype", "torch.float16"},
                           {"to_quant_block_names", "model.layers"},
                           {"extra_config", {{"lm_head", {{"bits", 16}, {"data_type", "float"}}}}}};
  const json gptq_model = {{"meta", {{"quantizer", {"gptqmodel:2.1.0"}}, {"damp_percent", 0.1}}},
                           {"method", "gptq"},
                           {"format", "gptq"},
                           {"pack_dtype", "int32"},
                           {"offload_to_disk", true},
                           {"offload_to_disk_path", "./x"},
                           {"vram_strategy", "balanced"},
                           {"mse", 2.0},
                           {"gptaq", {{"alpha", 0.25}}}};
  const auto loads = [](const char* form, const json& keys) {
    ChangedForm changed(form);
    json& config = changed.config["quantization_config"];
    config.update(keys);
    EXPECT_TRUE(changed.Error().ok()) << form << ": " << changed.Error();
  };
  for (const char* form : {"gptq_int4", "awq", "fp8_blocks", "ct_int4"}) {
    if (std::string(form) == "gptq_int4" || std::string(form) == "awq") loads(form, auto_round);
    loads(form, {{"provider", "someone"}, {"dataset", "wikitext2"}, {"seed", 7}, {"autoround_version", "1"}});
  }
  loads("gptq_int4", gptq_model);
  loads("gptq_int4", {{"checkpoint_format", "gptq"}});
  loads("awq", {{"method", "awq"},
                {"format", "gemm"},
                {"checkpoint_format", "gemm"},
                {"sym", false},
                {"desc_act", false},
                {"pack_dtype", "int32"},
                {"lm_head", false},
                {"duo_scaling", true}});
  ChangedForm rounded("gptq_int4");
  rounded.config["quantization_config"]["act_bits"] = 8;
  const TempFolder folder;
  rounded.WriteTo(folder);
  EXPECT_THAT(OpenModel(folder.path(), {})->config.warnings,
              testing::ElementsAre(AllOf(HasSubstr("act_bits"), HasSubstr("left out"))));
}

// Without zero points in the file numbers are around the middle; those that are there count.
TEST(QuantizedFiles, SymmetricAwqNeedsNoZeroPoints) {
  constexpr char kName[] = "model.layers.0.self_attn.q_proj.weight";
  ChangedForm changed("awq");
  json& config = changed.config["quantization_config"];
  std::vector<std::string> zeros;
  for (const auto& [name, entry] : changed.header.items()) {
    if (name.ends_with(".qzeros")) zeros.push_back(name);
  }
  ASSERT_GE(zeros.size(), 7u);
  const TempFolder as_it_was, in_the_middle, without;
  changed.WriteTo(as_it_was);
  config["zero_point"] = false;
  EXPECT_TRUE(changed.Error().ok()) << changed.Error();
  const TempFolder said_symmetric;
  changed.WriteTo(said_symmetric);
  EXPECT_EQ(ValuesIn(said_symmetric.path(), kName), ValuesIn(as_it_was.path(), kName));
  for (const std::string& name : zeros) {
    const auto range = changed.header[name]["data_offsets"].get<std::vector<size_t>>();
    std::fill(changed.data.begin() + static_cast<std::ptrdiff_t>(range[0]),
              changed.data.begin() + static_cast<std::ptrdiff_t>(range[1]), '\x88');
  }
  changed.WriteTo(in_the_middle);
  for (const std::string& name : zeros) changed.header.erase(name);
  changed.Fill();
  changed.WriteTo(without);
  EXPECT_EQ(ValuesIn(without.path(), kName), ValuesIn(in_the_middle.path(), kName));
  EXPECT_NE(ValuesIn(without.path(), kName), ValuesIn(as_it_was.path(), kName));
  config["zero_point"] = true;
  EXPECT_THAT(changed.Error().message(), HasSubstr("qzeros is missing"));
}

// As AutoGPTQ writes them for every module.
TEST(QuantizedFiles, BiasesOfZerosBesideNumbersAreLeftOut) {
  for (const char* form : {"gptq_int4", "awq"}) {
    ChangedForm changed(form);
    changed.Add(std::string(kQ) + "bias", "F16", {64}, std::string(128, '\0'));
    EXPECT_TRUE(changed.Error().ok()) << changed.Error();
    changed.Data(std::string(kQ) + "bias")[127] = '\x3c';
    EXPECT_THAT(changed.Error().message(), HasSubstr("q_proj.bias is no part"));
  }
}

TEST(QuantizedFiles, ZeroPointsAndGroupsThatSayNothingAreLeftOut) {
  ChangedForm changed("ct_fp8_channel");
  changed.Add(std::string(kQ) + "weight_zero_point", "F8_E4M3", {64, 1}, std::string(64, '\0'));
  EXPECT_TRUE(changed.Error().ok()) << changed.Error();
  changed.Data(std::string(kQ) + "weight_zero_point")[5] = '\x38';
  EXPECT_THAT(changed.Error().message(), HasSubstr("weight_zero_point is no part"));
  for (const char* form : {"ct_int4", "ct_actorder"}) {
    ChangedForm unset(form);
    const std::string name = std::string(kQ) + "weight_g_idx";
    if (unset.header.contains(name)) {
      std::fill_n(unset.Data(name), 64 * 4, '\xff');
    } else {
      unset.Add(name, "I32", {64}, std::string(size_t{64} * 4, '\xff'));
    }
    EXPECT_TRUE(unset.Error().ok()) << unset.Error();
  }
}

// As vLLM reads it, with the names of Hugging Face's modules or its own.
TEST(QuantizedFiles, MistralsOwnFilesMayBeOfCompressedTensors) {
  const ChangedForm hugging_face("ct_int4");
  const auto own_name = [](std::string name) {
    const std::pair<const char*, const char*> parts[] = {{"model.layers.", "layers."},
                                                         {"model.embed_tokens", "tok_embeddings"},
                                                         {"lm_head", "output"},
                                                         {"model.norm", "norm"},
                                                         {"input_layernorm", "attention_norm"},
                                                         {"post_attention_layernorm", "ffn_norm"},
                                                         {"self_attn.q_proj", "attention.wq"},
                                                         {"self_attn.k_proj", "attention.wk"},
                                                         {"self_attn.v_proj", "attention.wv"},
                                                         {"self_attn.o_proj", "attention.wo"},
                                                         {"mlp.gate_proj", "feed_forward.w1"},
                                                         {"mlp.down_proj", "feed_forward.w2"},
                                                         {"mlp.up_proj", "feed_forward.w3"}};
    for (const auto& [from, to] : parts) {
      const size_t at = name.find(from);
      if (at != std::string::npos) name.replace(at, std::string(from).size(), to);
    }
    return name;
  };
  json header = json::object();
  for (const auto& [name, entry] : hugging_face.header.items()) header[own_name(name)] = entry;
  const json& config = hugging_face.config;
  json params = {{"dim", config["hidden_size"]},
                 {"n_layers", config["num_hidden_layers"]},
                 {"n_heads", config["num_attention_heads"]},
                 {"n_kv_heads", config["num_key_value_heads"]},
                 {"head_dim", config.value("head_dim", json())},
                 {"hidden_dim", config["intermediate_size"]},
                 {"norm_eps", 1e-5},
                 {"vocab_size", config["vocab_size"]},
                 {"rope_theta", 1e4},
                 {"max_seq_len", 64},
                 {"tied_embeddings", config.value("tie_word_embeddings", json(false))}};
  params["quantization"] = config["quantization_config"];
  const auto open = [&] {
    const TempFolder folder;
    folder.Write("params.json", params.dump());
    folder.Write("consolidated.safetensors", SafetensorsWriter::FileOf(header.dump(), hugging_face.data));
    const auto opened = OpenModel(folder.path(), {});
    TM_RETURN_IF_ERROR(opened.status());
    return opened->weight_files.status();
  };
  json& quantization = params["quantization"];
  for (const char* method : {"compressed-tensors", "compressed_tensors"}) {
    quantization["quant_method"] = method;
    EXPECT_TRUE(open().ok()) << open();
  }
  quantization["config_groups"]["group_0"]["targets"] = {"re:.*self_attn.*_proj", "re:model.layers.*mlp.*"};
  EXPECT_TRUE(open().ok()) << open();
  quantization["config_groups"]["group_0"]["targets"] = {"re:.*mlp.*"};
  EXPECT_THAT(open().message(), HasSubstr("is no target of the config's groups"));
  // Alone it says of no weights that they are.
  params["quantization"] = {{"quant_method", "compressed-tensors"}};
  EXPECT_THAT(ParseMistralParams(params.dump(), "params.json")->warnings,
              testing::Contains(HasSubstr("quantization.config_groups is missing")));
  EXPECT_THAT(open().message(), HasSubstr("wq.weight is missing"));
  quantization["quant_method"] = "awq_marlin";
  EXPECT_THAT(open().message(), HasSubstr("quantization.quant_method is \"awq_marlin\""));
}

TEST(QuantizedConfigs, ExpressionsHaveLimits) {
  ChangedForm changed("ct_int4");
  json& ignore = changed.config["quantization_config"]["ignore"];
  ignore = {"re:" + std::string(1024, 'x')};
  EXPECT_TRUE(changed.Error().ok()) << changed.Error();
  ignore = {"re:" + std::string(1025, 'x')};
  EXPECT_THAT(changed.Error().message(), HasSubstr("an expression has 1025 bytes; the limit is 1024"));
  ignore = json::array();
  for (int i = 0; i < 101; ++i) ignore.push_back("re:x" + std::to_string(i));
  EXPECT_THAT(changed.Error().message(), HasSubstr("of 101 expressions; the limit is 100"));
}

TEST(QuantizedConfigs, WhatIsNotImplementedIsRefusedByName) {
  for (const RefusedKey& key : kRefused) {
    SCOPED_TRACE(std::string(key.form) + key.pointer + " = " + key.value);
    ChangedForm changed(key.form);
    const bool native = changed.config_file() == "params.json";
    changed.config[native ? "quantization" : "quantization_config"][json::json_pointer(key.pointer)] =
        json::parse(key.value);
    EXPECT_THAT(changed.Error().message(), AllOf(HasSubstr(changed.config_file()), HasSubstr(key.words)));
  }
}

// 16 divides the rows, but is no group that kernels have.
TEST(QuantizedConfigs, GroupsThatNoBlockDividesAreRefused) {
  ChangedForm changed("ct_int4");
  changed.config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 16;
  for (auto& [name, entry] : changed.header.items()) {
    if (!name.ends_with("weight_scale")) continue;
    std::vector<int64_t> shape = entry["shape"];
    shape[1] *= 2;
    const std::string bytes(static_cast<size_t>(shape[0] * shape[1] * 2), '\x3c');
    entry = {{"dtype", "F16"},
             {"shape", shape},
             {"data_offsets", {changed.data.size(), changed.data.size() + bytes.size()}}};
    changed.data += bytes;
  }
  // What the scales left behind.
  changed.Fill();
  EXPECT_THAT(changed.Error().message(), AllOf(HasSubstr("16 share a scale"), HasSubstr("multiples of 32")));
}

TEST(QuantizedConfigs, RoundingOfActivationsIsAWarning) {
  const auto opened = OpenModel(PathOf("fp8_blocks"), {});
  ASSERT_TRUE(opened.ok());
  EXPECT_THAT(opened->config.warnings,
              testing::ElementsAre(AllOf(HasSubstr("activation_scheme"), HasSubstr("left out"))));
}

}  // namespace
}  // namespace tramontane
