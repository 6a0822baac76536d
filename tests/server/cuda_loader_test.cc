// The CUDA library from the outside, by a program linked with a C++ library of its own (-static-libstdc++),
// and what the server says of a library that it cannot use.
#include "server/setup/cuda_loader.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <string>

#include "kernels/backends/cuda_library.h"
#include "tests/support/temp_folder.h"

namespace tramontane {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

std::string PathFrom(const char* variable) {
  const char* path = std::getenv(variable);
  return path == nullptr ? "" : path;
}

std::string WhyNot(const std::string& library) {
  const StatusOr<BackendPtr> backend = OpenCudaBackend(library);
  EXPECT_FALSE(backend.ok());
  return backend.ok() ? "" : backend.status().message();
}

TEST(CudaLoader, LooksBesideTheProgramsFolder) {
  EXPECT_THAT(CudaLibraryPath(), EndsWith("/lib/libtramontane_cuda.so"));
  EXPECT_THAT(CudaLibraryPath(), testing::Not(HasSubstr("/bin/")));
}

TEST(CudaLoader, SaysThatTheLibraryIsMissing) {
  EXPECT_THAT(WhyNot("/nowhere/libtramontane_cuda.so"),
              AllOf(HasSubstr("/nowhere/libtramontane_cuda.so"), HasSubstr("without a CUDA toolkit (ninja")));
}

TEST(CudaLoader, SaysThatAFileIsNoLibrary) {
  const TempFolder folder;
  const std::string path = folder.path() + "/libtramontane_cuda.so";
  std::ofstream(path) << "not a library";
  EXPECT_THAT(WhyNot(path), HasSubstr("cannot be opened"));
}

// A library that needs another one, which is not there: as ours on a machine without cuBLAS.
TEST(CudaLoader, SaysWhichLibraryIsMissingAndWhatToInstall) {
  EXPECT_THAT(WhyNot(PathFrom("LIBRARY_WITHOUT_CUBLAS")),
              AllOf(HasSubstr("libcublas_absent.so"), HasSubstr("install cuBLAS of CUDA 13")));
}

TEST(CudaLoader, SaysThatALibraryIsNotOurs) {
  EXPECT_THAT(WhyNot(PathFrom("FOREIGN_LIBRARY")), HasSubstr("is no CUDA library of Tramontane"));
}

TEST(CudaLoader, SaysThatALibraryIsOfAnotherRelease) {
  EXPECT_THAT(WhyNot(PathFrom("OLD_LIBRARY")),
              AllOf(HasSubstr("is of another release"), HasSubstr("the library says why")));
}

class CudaLibrary : public testing::Test {
 protected:
  void SetUp() override {
    path_ = PathFrom("TRAMONTANE_CUDA_LIBRARY");
    if (path_.empty()) GTEST_SKIP() << "built without a CUDA toolkit: there is no libtramontane_cuda.so";
  }
  std::string path_;
};

TEST_F(CudaLibrary, AnswersACallerOfAnotherVersionWithASentence) {
  void* library = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* make = reinterpret_cast<MakeCudaBackendEntry>(dlsym(library, kCudaLibraryEntry));
  ASSERT_NE(make, nullptr);
  Backend* backend = nullptr;
  std::array<char, 512> reason{};
  EXPECT_EQ(make(kBackendAbiVersion + 1, &backend, reason.data(), reason.size(), nullptr),
            kCudaLibraryOtherAbi);
  EXPECT_EQ(backend, nullptr);
  EXPECT_THAT(reason.data(), HasSubstr("speaks version " + std::to_string(kBackendAbiVersion)));

  // A reason that does not fit is cut, and nothing is written behind it.
  reason.fill('x');
  EXPECT_EQ(make(kBackendAbiVersion + 1, &backend, reason.data(), 4, nullptr), kCudaLibraryOtherAbi);
  EXPECT_EQ(std::string(reason.data()).size(), 3u);
  EXPECT_EQ(reason[4], 'x');
}

TEST_F(CudaLibrary, GivesABackendOrSaysWhatIsMissing) {
  const StatusOr<BackendPtr> backend = OpenCudaBackend(path_);
  if (backend.ok()) {
    EXPECT_STREQ((*backend)->info().name, "cuda");
    EXPECT_GT((*backend)->info().memory_bytes, 0);
  } else {
    EXPECT_EQ(backend.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(backend.status().message(), HasSubstr("there is no usable GPU: "));
  }
}

}  // namespace
}  // namespace tramontane
