#include "server/watch/process_stats.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>

namespace tramontane {
namespace {

// Newer kernels say how many entries the folder has; of older ones they are counted.
int64_t OpenFiles() {
  struct stat folder = {};
  if (stat("/proc/self/fd", &folder) == 0 && folder.st_size > 0) return folder.st_size;
  std::error_code error;
  int64_t files = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error))
    ++files;
  return files;
}

// What /proc counts from, since 1970.
double BootTime() {
  timespec now = {};
  timespec since_boot = {};
  clock_gettime(CLOCK_REALTIME, &now);
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  return static_cast<double>(now.tv_sec - since_boot.tv_sec) +
         static_cast<double>(now.tv_nsec - since_boot.tv_nsec) * 1e-9;
}

// The fields of /proc/self/stat behind the name, which may hold anything: the first is the third of the
// whole.
std::string StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos ? "" : text.substr(name_end + 1);
}

}  // namespace

ProcessStats ReadProcessStats() {
  constexpr int kFirst = 3, kUserTime = 14, kSystemTime = 15, kThreads = 20, kStart = 22, kVirtual = 23,
                kResident = 24;
  static const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  static const double boot_s = BootTime();  // once: the system's clock may be set
  ProcessStats stats;
  std::istringstream fields(StatFields());
  std::string field;
  for (int number = kFirst; number <= kResident && fields >> field; ++number) {
    const int64_t value = std::strtoll(field.c_str(), nullptr, 10);
    if (number == kUserTime || number == kSystemTime) stats.cpu_seconds += static_cast<double>(value) / ticks;
    if (number == kThreads) stats.threads = value;
    if (number == kStart) stats.start_time_s = boot_s + static_cast<double>(value) / ticks;
    if (number == kVirtual) stats.virtual_bytes = value;
    if (number == kResident) stats.resident_bytes = value * sysconf(_SC_PAGESIZE);
  }
  stats.open_files = OpenFiles();
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_files = static_cast<int64_t>(limit.rlim_cur);
  return stats;
}

}  // namespace tramontane
