#include "kernels/cuda/cuda_runtime.h"

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/core/check.h"

namespace tramontane::cuda {
namespace {

constexpr int kBlasErrors = 100'000;  // errors from here on are cuBLASLt's, below the CUDA runtime's
constexpr size_t kBlasWorkspaceBytes = size_t{32} << 20;
constexpr uint32_t kBlasAlignment = 16;  // of every operand
constexpr int kCandidates = 16;          // that cuBLASLt is asked for
constexpr int kLeastCapability = 80;     // mma.sync of bf16, cp.async
constexpr int kFp8Capability = 90;       // where cuBLASLt multiplies fp8 with a scale a row: there alone

int BlasError(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS ? 0 : kBlasErrors + status; }

// cuBLASLt counts columns first: a row-major [rows, columns] matrix is its [columns, rows] one. So the
// product it is asked for is y^T [out_features, rows] = W x^T, whose A is W and whose B is x. Of fp8 it asks
// just that: A transposed and B as it is, both sizes of A multiples of 16.
struct MatmulLayouts {
  cublasLtMatrixLayoutOpaque_t weight, x, out;

  MatmulLayouts(const MatmulShape& shape, int64_t rows, int64_t x_stride, int64_t out_stride) {
    const auto in = static_cast<uint64_t>(shape.in_features),
               out_features = static_cast<uint64_t>(shape.out_features);
    const cudaDataType_t in_type = shape.in == MatmulIn::kFp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF,
                         out_type = shape.out == MatmulOut::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    cublasLtMatrixLayoutInit(&weight, in_type, in, out_features, shape.in_features);
    cublasLtMatrixLayoutInit(&x, in_type, in, static_cast<uint64_t>(rows), x_stride);
    cublasLtMatrixLayoutInit(&out, out_type, out_features, static_cast<uint64_t>(rows), out_stride);
  }
};

class CudaRuntime final : public Runtime {
 public:
  ~CudaRuntime() override;
  // "" or what went wrong.
  std::string Start(const cudaDeviceProp& device);

  const DeviceProperties& properties() const override { return properties_; }
  std::string ErrorText(int error) const override;

  void* Allocate(int64_t bytes) override;
  void Free(void* memory) override { cudaFree(memory); }
  void* AllocateHost(int64_t bytes) override;
  void FreeHost(void* memory) override { cudaFreeHost(memory); }
  int64_t FreeBytes() override;
  int PlanMatmul(const MatmulShape& shape) override;
  bool HasKernel(int plan) const override {
    return plans_.at(static_cast<size_t>(plan)).of_family.has_value();
  }
  const std::string& tuning_key() const override { return tuning_key_; }
  std::vector<std::string> MatmulCandidates(int plan) override;
  bool ChooseMatmul(int plan, const std::string& candidate) override;
  int64_t NowNs() override {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }

  int CopyToDevice(void* device, const void* host, int64_t bytes, WhichStream on) override {
    return cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, StreamOf(on));
  }
  int CopyToHost(void* host, const void* device, int64_t bytes, WhichStream on) override {
    return cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, StreamOf(on));
  }
  int HoldMoves(int event) override {
    return cudaStreamWaitEvent(moves_, events_.at(static_cast<size_t>(event)), cudaEventWaitDefault);
  }
  // A stream waits for the record that is the latest when it is told to: one event serves all batches.
  int AwaitMoves() override {
    if (const int error = cudaEventRecord(moved_, moves_)) return error;
    return cudaStreamWaitEvent(stream_, moved_, cudaEventWaitDefault);
  }

  void* stream() override { return stream_; }
  int Matmul(int plan, const MatmulParams& params) override;
  int RecordEvent(int event) override {
    return cudaEventRecord(events_.at(static_cast<size_t>(event)), stream_);
  }
  int Synchronize() override {
    if (const int error = cudaStreamSynchronize(moves_)) return error;
    return cudaStreamSynchronize(stream_);
  }
  int WaitEvent(int event) override { return cudaEventSynchronize(events_.at(static_cast<size_t>(event))); }

  int BeginRecording() override { return cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal); }
  int EndRecording(void** recording, int64_t* launches) override;
  int Replay(void* recording) override {
    return cudaGraphLaunch(static_cast<cudaGraphExec_t>(recording), stream_);
  }
  void FreeRecording(void* recording) override {
    cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(recording));
  }

 private:
  using Algorithm = std::optional<cublasLtMatmulAlgo_t>;
  struct Plan {
    MatmulShape shape;
    Algorithm of_family = {};
    std::map<int32_t, Algorithm> of_rows = {};  // of row counts that it does not serve; none: nothing does
  };

  cudaStream_t StreamOf(WhichStream stream) const { return stream == WhichStream::kSteps ? stream_ : moves_; }
  int MakeOperations();
  // What is asked of the library: of fp8 with these scales.
  cublasLtMatmulDescOpaque_t OperationOf(MatmulIn in, const float* x_scales, const float* weight_scales);
  // To be planned for: of fp8 with some scales, without which none is found.
  cublasLtMatmulDescOpaque_t OperationOf(MatmulIn in) {
    const auto* scales = static_cast<const float*>(blas_workspace_);
    return OperationOf(in, scales, scales);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> Candidates(MatmulIn in, MatmulLayouts& layouts);
  cublasStatus_t Run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const MatmulParams& params,
                     MatmulLayouts& layouts);
  bool ServesAllRows(const MatmulShape& shape, const cublasLtMatmulAlgo_t& algorithm);

  DeviceProperties properties_;
  std::string tuning_key_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t moves_ = nullptr;
  std::array<cudaEvent_t, kEvents> events_{};
  cudaEvent_t moved_ = nullptr;  // behind what was queued on moves_
  cublasLtHandle_t blas_ = nullptr;
  cublasLtMatmulDescOpaque_t operation_{};      // W transposed, x as it is, f32 sums
  cublasLtMatmulDescOpaque_t fp8_operation_{};  // and a scale for each row of both
  void* blas_workspace_ = nullptr;
  std::vector<Plan> plans_;
};

std::string CudaRuntime::Start(const cudaDeviceProp& device) {
  properties_.name = device.name;
  properties_.multiprocessors = device.multiProcessorCount;
  properties_.shared_bytes = static_cast<int64_t>(device.sharedMemPerMultiprocessor);
  properties_.shared_bytes_reserved = static_cast<int64_t>(device.reservedSharedMemPerBlock);
  properties_.hopper = device.major == 9 && device.minor == 0;
  properties_.fp8_products = device.major * 10 + device.minor == kFp8Capability;
  if (!properties_.fp8_products) {
    properties_.why_no_fp8_products = "the device has compute capability " + std::to_string(device.major) +
                                      "." + std::to_string(device.minor) + ", it takes 9.0";
  }
  tuning_key_ = properties_.name + "," + std::to_string(properties_.multiprocessors) + ",cublasLt-" +
                std::to_string(cublasLtGetVersion());
  std::replace(tuning_key_.begin(), tuning_key_.end(), ' ', '_');
  int error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  if (error == 0) error = cudaStreamCreateWithFlags(&moves_, cudaStreamNonBlocking);
  for (cudaEvent_t& event : events_) {
    if (error == 0) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  if (error == 0) error = cudaEventCreateWithFlags(&moved_, cudaEventDisableTiming);
  if (error == 0) error = cudaMalloc(&blas_workspace_, kBlasWorkspaceBytes);
  if (error == 0) error = BlasError(cublasLtCreate(&blas_));
  if (error == 0) error = MakeOperations();
  size_t free_bytes = 0, total_bytes = 0;
  if (error == 0) error = cudaMemGetInfo(&free_bytes, &total_bytes);
  properties_.memory_bytes = static_cast<int64_t>(free_bytes);
  return error == 0 ? "" : ErrorText(error);
}

// CUBLASLT_MATMUL_DESC_FAST_ACCUM stays as it is, off: sums of fp8 are handed to f32 more often. A library
// that does not know a scale a row is none that the rest is in want of.
int CudaRuntime::MakeOperations() {
  cublasStatus_t status = cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                            sizeof(transposed));
  }
  fp8_operation_ = operation_;
  const int32_t a_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  for (const auto mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE}) {
    if (cublasLtMatmulDescSetAttribute(&fp8_operation_, mode, &a_row, sizeof(a_row)) == CUBLAS_STATUS_SUCCESS)
      continue;
    if (properties_.fp8_products) properties_.why_no_fp8_products = "cuBLASLt knows no scale a row";
    properties_.fp8_products = false;
  }
  return BlasError(status);
}

CudaRuntime::~CudaRuntime() {
  if (blas_ != nullptr) cublasLtDestroy(blas_);
  cudaFree(blas_workspace_);
  for (cudaEvent_t event : events_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (moved_ != nullptr) cudaEventDestroy(moved_);
  if (moves_ != nullptr) cudaStreamDestroy(moves_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

std::string CudaRuntime::ErrorText(int error) const {
  const std::string number = " (" + std::to_string(error % kBlasErrors) + ")";
  if (error >= kBlasErrors) {
    // Whatever the library returned, known to this header or not.
    // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange)
    const auto status = static_cast<cublasStatus_t>(error - kBlasErrors);
    return "cuBLASLt: " + std::string(cublasLtGetStatusString(status)) + number;
  }
  return std::string(cudaGetErrorString(static_cast<cudaError_t>(error))) + number;
}

// ---- memory

void* CudaRuntime::Allocate(int64_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();  // forgotten: the caller is told by null
    return nullptr;
  }
  if (cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_) != cudaSuccess) {
    cudaGetLastError();
    cudaFree(memory);
    return nullptr;
  }
  return memory;
}

void* CudaRuntime::AllocateHost(int64_t bytes) {
  void* memory = nullptr;
  if (cudaMallocHost(&memory, static_cast<size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  std::fill_n(static_cast<std::byte*>(memory), bytes, std::byte{0});
  return memory;
}

int64_t CudaRuntime::FreeBytes() {
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return 0;
  return static_cast<int64_t>(free_bytes);
}

// ---- matrix products

cublasLtMatmulDescOpaque_t CudaRuntime::OperationOf(MatmulIn in, const float* x_scales,
                                                    const float* weight_scales) {
  if (in == MatmulIn::kBf16) return operation_;
  cublasLtMatmulDescOpaque_t operation = fp8_operation_;
  const auto set = [&operation](cublasLtMatmulDescAttributes_t attribute, const float* scales) {
    cublasLtMatmulDescSetAttribute(&operation, attribute, static_cast<const void*>(&scales), sizeof(scales));
  };
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight_scales);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales);
  return operation;
}

bool CudaRuntime::ServesAllRows(const MatmulShape& shape, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulDescOpaque_t operation = OperationOf(shape.in);
  for (const int32_t rows : {shape.min_rows, shape.max_rows}) {
    MatmulLayouts layouts(shape, rows, shape.in_features, shape.out_features);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(blas_, &operation, &layouts.weight, &layouts.x,
                                                          &layouts.out, &layouts.out, &algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kBlasWorkspaceBytes) return false;
  }
  return true;
}

// Best first. None that would add partial sums in bf16: sums are f32 until the one rounding at the end.
std::vector<cublasLtMatmulHeuristicResult_t> CudaRuntime::Candidates(MatmulIn in, MatmulLayouts& layouts) {
  cublasLtMatmulDescOpaque_t operation = OperationOf(in);
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulPreferenceInit(&preference);
  cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &kBlasWorkspaceBytes, sizeof(kBlasWorkspaceBytes));
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                       sizeof(reductions));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &kBlasAlignment, sizeof(kBlasAlignment));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(kCandidates);
  int found = 0;
  if (cublasLtMatmulAlgoGetHeuristic(blas_, &operation, &layouts.weight, &layouts.x, &layouts.out,
                                     &layouts.out, &preference, kCandidates, candidates.data(),
                                     &found) != CUBLAS_STATUS_SUCCESS) {
    found = 0;
  }
  candidates.resize(static_cast<size_t>(found));
  std::erase_if(candidates, [](const auto& candidate) { return candidate.state != CUBLAS_STATUS_SUCCESS; });
  return candidates;
}

// The first candidate for the most rows that serves the fewest too.
int CudaRuntime::PlanMatmul(const MatmulShape& shape) {
  TM_CHECK(shape.in == MatmulIn::kBf16 || properties_.fp8_products, "fp8, but %s",
           properties_.why_no_fp8_products.c_str());
  MatmulLayouts layouts(shape, shape.max_rows, shape.in_features, shape.out_features);
  Plan plan = {.shape = shape};
  for (const cublasLtMatmulHeuristicResult_t& candidate : Candidates(shape.in, layouts)) {
    if (!ServesAllRows(shape, candidate.algo)) continue;
    plan.of_family = candidate.algo;
    break;
  }
  plans_.push_back(std::move(plan));
  return static_cast<int>(plans_.size()) - 1;
}

// A candidate's name is what the library keeps of it, which it says may be saved and used again by the same
// version, in hexadecimal.
std::string NameOf(const cublasLtMatmulAlgo_t& algorithm) {
  std::string name;
  char digits[17];
  for (const uint64_t word : algorithm.data) {
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(word));
    name += digits;
  }
  return name;
}

std::optional<cublasLtMatmulAlgo_t> AlgorithmOf(const std::string& name) {
  constexpr size_t kDigits = 16;
  cublasLtMatmulAlgo_t algorithm{};
  if (name.size() != std::size(algorithm.data) * kDigits) return std::nullopt;
  for (size_t i = 0; i < std::size(algorithm.data); ++i) {
    const char* const begin = name.data() + i * kDigits;
    if (std::from_chars(begin, begin + kDigits, algorithm.data[i], 16).ptr != begin + kDigits)
      return std::nullopt;
  }
  return algorithm;
}

std::vector<std::string> CudaRuntime::MatmulCandidates(int plan) {
  const MatmulShape& shape = plans_.at(static_cast<size_t>(plan)).shape;
  MatmulLayouts layouts(shape, shape.max_rows, shape.in_features, shape.out_features);
  std::vector<std::string> names;
  for (const cublasLtMatmulHeuristicResult_t& candidate : Candidates(shape.in, layouts)) {
    if (ServesAllRows(shape, candidate.algo)) names.push_back(NameOf(candidate.algo));
  }
  return names;
}

bool CudaRuntime::ChooseMatmul(int plan, const std::string& candidate) {
  Plan& p = plans_.at(static_cast<size_t>(plan));
  const std::optional<cublasLtMatmulAlgo_t> algorithm = AlgorithmOf(candidate);
  if (!algorithm || !ServesAllRows(p.shape, *algorithm)) return false;
  p.of_family = algorithm;
  p.of_rows.clear();
  return true;
}

cublasStatus_t CudaRuntime::Run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                                const MatmulParams& params, MatmulLayouts& layouts) {
  const float one = 1.0f;
  const float kept = plan.shape.out == MatmulOut::kBf16Add ? 1.0f : 0.0f;
  cublasLtMatmulDescOpaque_t operation = OperationOf(plan.shape.in, params.x_scales, params.weight_scales);
  return cublasLtMatmul(blas_, &operation, &one, params.weight, &layouts.weight, params.x, &layouts.x, &kept,
                        params.out, &layouts.out, params.out, &layouts.out, &algorithm, blas_workspace_,
                        kBlasWorkspaceBytes, stream_);
}

// A row count that the family's kernel refuses asks for its own the first time it comes, which is before a
// step of so many rows is recorded.
int CudaRuntime::Matmul(int plan, const MatmulParams& params) {
  const auto refuses = [](cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
  };
  Plan& p = plans_.at(static_cast<size_t>(plan));
  TM_CHECK(params.rows >= p.shape.min_rows && params.rows <= p.shape.max_rows,
           "%d rows, the plan is for %d to %d", params.rows, p.shape.min_rows, p.shape.max_rows);
  MatmulLayouts layouts(p.shape, params.rows, params.x_stride, params.out_stride);
  auto own = p.of_rows.find(params.rows);
  if (own == p.of_rows.end()) {
    const cublasStatus_t status =
        p.of_family ? Run(p, *p.of_family, params, layouts) : CUBLAS_STATUS_NOT_SUPPORTED;
    if (!refuses(status)) return BlasError(status);
    own = p.of_rows.try_emplace(params.rows).first;
    const std::vector<cublasLtMatmulHeuristicResult_t> candidates = Candidates(p.shape.in, layouts);
    if (!candidates.empty()) own->second = candidates[0].algo;
  }
  if (!own->second) return kNoMatmul;
  const cublasStatus_t status = Run(p, *own->second, params, layouts);
  return refuses(status) ? kNoMatmul : BlasError(status);
}

// ---- recorded steps

int CudaRuntime::EndRecording(void** recording, int64_t* launches) {
  cudaGraph_t graph = nullptr;
  if (const int error = cudaStreamEndCapture(stream_, &graph)) return error;
  size_t nodes = 0;
  int error = cudaGraphGetNodes(graph, nullptr, &nodes);
  *launches = static_cast<int64_t>(nodes);
  cudaGraphExec_t executable = nullptr;
  if (error == 0) error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  // Its memory on the device is taken here, and not by the first step that replays it.
  if (error == 0) error = cudaGraphUpload(executable, stream_);
  if (error != 0 && executable != nullptr) {
    cudaGraphExecDestroy(executable);
    executable = nullptr;
  }
  *recording = executable;
  return error;
}

// "12.4" of the 12040 that the runtime speaks in.
std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string WhyNoDevice(cudaError_t error) {
  int driver = 0, library = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&library);
  if (error == cudaErrorNoDevice) return "the driver sees no GPU";
  if (driver == 0) return "there is no NVIDIA driver";
  if (error == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver is for CUDA " + VersionText(driver) + ", this build needs " +
           VersionText(library);
  }
  return "the NVIDIA driver says: " + std::string(cudaGetErrorString(error));
}

}  // namespace

std::unique_ptr<Runtime> MakeCudaRuntime(std::string* why_not) {
  int devices = 0;
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices == 0) error = cudaErrorNoDevice;
  cudaDeviceProp device{};
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&device, 0);
  if (error != cudaSuccess) {
    *why_not = WhyNoDevice(error);
    return nullptr;
  }
  if (device.major * 10 + device.minor < kLeastCapability) {
    *why_not = std::string(device.name) + " has compute capability " + std::to_string(device.major) + "." +
               std::to_string(device.minor) + ", the least is 8.0";
    return nullptr;
  }
  auto runtime = std::make_unique<CudaRuntime>();
  *why_not = runtime->Start(device);
  if (!why_not->empty()) return nullptr;
  return runtime;
}

}  // namespace tramontane::cuda
