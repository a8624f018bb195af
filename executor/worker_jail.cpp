#include "executor/worker_jail.h"

#include <algorithm>

#include "base/os/own_process.h"
#include "base/os/process.h"
#include "job/device_profile.h"

namespace weft::executor {
namespace {

std::vector<os::Path> files_of(const job::WorkerSpec& spec) {
  std::vector<os::Path> files = {spec.graph.path, spec.eval_graph.path,  spec.init.path,
                                 spec.key_path,   spec.certificate_path, spec.ca_path};
  for (const auto& [name, blob] : spec.weights) files.emplace_back(blob.path);
  for (const auto& [name, blob] : spec.data) files.emplace_back(blob.path);
  for (const job::BlobRef& shard : spec.resume.shards) files.emplace_back(shard.path);
  return files;
}

void append(std::vector<os::Path>& to, const std::vector<os::Path>& paths) {
  std::copy_if(paths.begin(), paths.end(), std::back_inserter(to),
               [](const os::Path& path) { return !path.empty(); });
}

Status enter(os::JailMode mode, const std::vector<os::Path>& read,
             const std::vector<os::Path>& write, const std::string& device) {
  os::JailPolicy policy = os::system_jail_policy();
  append(policy.read, read);
  append(policy.write, write);
  // Drivers of a GPU reserve address space as they please.
  if (!job::is_card(device)) policy.max_data_bytes = os::total_memory_bytes();
  return os::enter_jail(mode, policy);
}

}  // namespace

Status enter_command_jail(os::JailMode mode, const std::vector<os::Path>& read,
                          const std::vector<os::Path>& write, const std::string& device) {
  return enter(mode, read, write, device);
}

Status enter_worker_jail(os::JailMode mode, const job::WorkerSpec& spec) {
  if (spec.work_dir.empty()) return enter(mode, files_of(spec), {}, spec.device);
  WEFT_TRY_STATUS(os::make_directories(spec.work_dir, 0700));
  os::set_temporary_folder(spec.work_dir);
  return enter(mode, files_of(spec), {spec.work_dir}, spec.device);
}

}  // namespace weft::executor
