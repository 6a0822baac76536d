// quantize MODEL OUT: a model written a second time, its matrices in groups of small integers.
#include <cinttypes>
#include <cstdio>
#include <memory>

#include "models/quantized/quantize_model.h"
#include "server/commands/commands.h"
#include "server/setup/model_source.h"

namespace tramontane {
namespace {

struct QuantizeArguments {
  std::string model;
  std::string out;
  std::string type;
  QuantizeOptions options;
};

Status Quantize(const QuantizeArguments& arguments) {
  TM_ASSIGN_OR_RETURN(const ModelSource source, FindModel(arguments.model));
  TM_ASSIGN_OR_RETURN(const OpenedModel model, OpenModel(source.folder, {}));
  QuantizeOptions options = arguments.options;
  options.bits = arguments.type == "int4" ? 4 : 8;
  TM_ASSIGN_OR_RETURN(const QuantizeResult result, QuantizeModel(model, arguments.out, options));
  std::printf("%s: %" PRId64 " matrices in %s in groups of %" PRId64 ", %" PRId64
              " tensors as they are; %" PRId64 " bytes of %" PRId64 "\n",
              arguments.out.c_str(), result.quantised, arguments.type.c_str(), options.group, result.kept,
              result.bytes_after, result.bytes_before);
  return {};
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
  CLI::App* command = app.add_subcommand(
      "quantize",
      "Write a model a second time with its matrices in int8 or int4, as compressed-tensors has them");
  command->add_option("MODEL", arguments->model, "folder of the model")->required();
  command->add_option("OUT", arguments->out, "folder to write; made where it is not there")->required();
  command->add_option("--type", arguments->type, "of the numbers: int8 or int4")
      ->required()
      ->check(CLI::IsMember({"int8", "int4"}));
  command->add_option("--group", arguments->options.group, "numbers that share a scale")
      ->check(CLI::IsMember({32, 64, 128, 256}))
      ->capture_default_str();
  command
      ->add_option(
          "--keep", arguments->options.keep,
          "names of tensors that stay as they are, * for anything; may stand several times. Replaces the "
          "default: embeddings and output matrix. Norms and routers always stay")
      ->type_name("PATTERN")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  command->callback([arguments, run] { *run = [arguments] { return RunQuantize(*arguments); }; });
}

}  // namespace tramontane
