// quantize MODEL OUT: a model written a second time, its matrices in groups of small integers: a folder of
// safetensors, or a GGUF file.
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <utility>

#include "models/quantized/gguf_model.h"
#include "models/quantized/quantize_model.h"
#include "server/commands/commands.h"
#include "server/setup/model_source.h"
#include "server/setup/tokenizer_keys.h"

namespace tramontane {
namespace {

constexpr int64_t kDefaultGroup = 64;

struct QuantizeArguments {
  std::string model;
  std::string out;
  std::string type;    // "": the format says it
  std::string format;  // "": safetensors
  int64_t group = 0;   // 0: not said
  std::vector<std::string> keep = QuantizeOptions().keep;
};

// `kinds`: of the numbers.
void PrintResult(const QuantizeArguments& arguments, const std::string& kinds, const QuantizeResult& result) {
  std::printf("%s: %" PRId64 " matrices in %s, %" PRId64 " tensors as they are; %" PRId64 " bytes of %" PRId64
              "\n",
              arguments.out.c_str(), result.quantised, kinds.c_str(), result.kept, result.bytes_after,
              result.bytes_before);
}

void PrintNotes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::fprintf(stderr, "tramontane quantize: %s\n", note.c_str());
}

Status QuantizeToFolder(const QuantizeArguments& arguments, const OpenedModel& model) {
  QuantizeOptions options;
  options.bits = arguments.type == "int4" ? 4 : 8;
  options.group = arguments.group == 0 ? kDefaultGroup : arguments.group;
  options.keep = arguments.keep;
  if (model.config.layout == FolderLayout::kGguf) {
    TM_ASSIGN_OR_RETURN(TokenizerFiles tokenizer, TokenizerFilesOf(model));
    PrintNotes(tokenizer.notes);
    options.files = std::move(tokenizer.files);
  }
  TM_ASSIGN_OR_RETURN(const QuantizeResult result, QuantizeModel(model, arguments.out, options));
  PrintResult(arguments, arguments.type + " in groups of " + std::to_string(options.group), result);
  return {};
}

Status QuantizeToGguf(const QuantizeArguments& arguments, const OpenedModel& model, const std::string& name) {
  GgufModelOptions options;
  options.type = arguments.format == "gguf:Q4_0" ? DType::kQ4_0 : DType::kQ8_0;
  options.name = name;
  options.keep = arguments.keep;
  TM_ASSIGN_OR_RETURN(TokenizerKeys tokenizer, TokenizerKeysOf(model));
  PrintNotes(tokenizer.notes);
  options.tokenizer = std::move(tokenizer.keys);
  TM_ASSIGN_OR_RETURN(const QuantizeResult result, WriteGgufModel(model, arguments.out, options));
  PrintResult(arguments, DTypeName(options.type), result);
  return {};
}

Status CheckArguments(const QuantizeArguments& arguments) {
  if (arguments.format.empty() && arguments.type.empty())
    return InvalidArgument("one of --type and --format is required");
  if (arguments.format.empty()) return {};
  const char* extra = !arguments.type.empty() ? "--type" : arguments.group != 0 ? "--group" : nullptr;
  if (extra == nullptr) return {};
  return InvalidArgument(std::string(extra) + " does not go with --format " + arguments.format +
                         ", which says the numbers and what shares a scale");
}

Status Quantize(const QuantizeArguments& arguments) {
  TM_RETURN_IF_ERROR(CheckArguments(arguments));
  TM_ASSIGN_OR_RETURN(const ModelSource source, FindModel(arguments.model));
  TM_ASSIGN_OR_RETURN(const OpenedModel model, OpenModel(source.folder, {}));
  return arguments.format.empty() ? QuantizeToFolder(arguments, model)
                                  : QuantizeToGguf(arguments, model, source.name);
}

int RunQuantize(const QuantizeArguments& arguments) {
  const Status status = Quantize(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tramontane quantize: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

void AddQuantizeCommand(CLI::App& app, RunCommand* run) {
  auto arguments = std::make_shared<QuantizeArguments>();
  CLI::App* command = app.add_subcommand("quantize",
                                         "Write a model a second time with its matrices in int8 or int4, as "
                                         "compressed-tensors has them, or as a GGUF file");
  command->add_option("MODEL", arguments->model, "folder of the model, or a GGUF file")->required();
  command
      ->add_option("OUT", arguments->out, "folder to write, made where it is not there; with --format a file")
      ->required();
  command->add_option("--type", arguments->type, "of the numbers: int8 or int4")
      ->check(CLI::IsMember({"int8", "int4"}));
  command->add_option("--format", arguments->format, "of a GGUF file, in place of --type and --group")
      ->check(CLI::IsMember({"gguf:Q8_0", "gguf:Q4_0"}));
  command->add_option("--group", arguments->group, "numbers that share a scale; 64 where it is not said")
      ->check(CLI::IsMember({32, 64, 128, 256}));
  command
      ->add_option(
          "--keep", arguments->keep,
          "names of tensors that stay as they are, * for anything; may stand several times. Replaces the "
          "default: embeddings and output matrix. Norms and routers always stay")
      ->type_name("PATTERN")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  command->callback([arguments, run] { *run = [arguments] { return RunQuantize(*arguments); }; });
}

}  // namespace tramontane
