#include "tests/kv_vectors/run.h"

#include <utility>

#include "tests/kv_vectors/kinds.h"

namespace tramontane::kv_vectors {
namespace {

// Keeps an output line one line.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return text;
}

Status RunOne(CaseRun& run, const VectorCase& vector_case) {
  const RunKind kind = FindKind(vector_case.kind);
  if (kind == nullptr) return InvalidArgument("is no kind that is known");
  TM_RETURN_IF_ERROR(kind(run));
  return run.skipped().empty() ? run.EverythingWasCompared() : Status::Ok();
}

void RunFile(Machine& machine, const std::string& file, std::ostream& out, Outcome* outcome) {
  const StatusOr<std::vector<VectorCase>> cases = ReadVectorFile(file);
  if (!cases.ok()) {
    ++outcome->failed;
    out << "FAIL " << file << " - -: " << OneLine(cases.status().message()) << "\n";
    return;
  }
  for (const VectorCase& vector_case : *cases) {
    const std::string what = file + " " + vector_case.kind + " " + OneLine(vector_case.name) + ": ";
    CaseRun run(vector_case, machine);
    const Status status = RunOne(run, vector_case);
    if (!status.ok()) {
      ++outcome->failed;
      out << "FAIL " << what << OneLine(status.message()) << "\n";
    } else if (!run.skipped().empty()) {
      ++outcome->skipped;
      out << "SKIP " << what << run.skipped() << "\n";
    } else {
      ++outcome->passed;
    }
  }
}

}  // namespace

RunKind FindKind(std::string_view kind) {
  static constexpr std::pair<std::string_view, RunKind> kKinds[] = {
      {"openppl.key_value_cache", RunOpenPplKeyValueCache},
      {"flashinfer.append", RunFlashInferAppend},
      {"flashinfer.mask", RunFlashInferMask},
      {"flashinfer.attention", RunFlashInferAttention},
      {"flashinfer.mla", RunFlashInferMla},
      {"flashinfer.cascade", RunFlashInferCascade},
      {"ascend.mask", RunAscendMask},
      {"ascend.tiles", RunAscendTiles},
      {"article.trace", RunArticleTrace},
      {"article.attention", RunArticleAttention},
      {"streaming.plan", RunStreamingPlan},
      {"streaming.attention", RunStreamingAttention},
      {"rope.shift", RunRopeShift},
      {"prefix.hit", RunPrefixHit},
      {"fp8.e4m3", RunFp8E4M3},
  };
  for (const auto& [name, run] : kKinds) {
    if (name == kind) return run;
  }
  return nullptr;
}

Outcome RunFiles(Machine& machine, const std::vector<std::string>& files, std::ostream& out) {
  Outcome outcome;
  for (const std::string& file : files) RunFile(machine, file, out, &outcome);
  out << outcome.passed << " passed, " << outcome.failed << " failed" << std::endl;
  return outcome;
}

int KvVectorsMain(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  std::string backend = "cpu";
  std::vector<std::string> files;
  bool wrong = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--backend" && i + 1 < arguments.size()) {
      backend = arguments[++i];
    } else if (arguments[i].starts_with("--backend=")) {
      backend = arguments[i].substr(std::string("--backend=").size());
    } else if (arguments[i].starts_with("-")) {
      wrong = true;
    } else {
      files.push_back(arguments[i]);
    }
  }
  if (wrong || files.empty()) {
    err << "usage: kv_vectors [--backend cpu|emulator|cuda] FILE...\n";
    return 2;
  }
  StatusOr<Machine> machine = MakeMachine(backend);
  if (!machine.ok()) {
    err << "kv_vectors: " << machine.status().message() << "\n";
    return 2;
  }
  return RunFiles(*machine, files, out).good() ? 0 : 1;
}

}  // namespace tramontane::kv_vectors
