// From a job file to what the broker takes: graphs imported and prepared (loss appended, pruned,
// frozen), weights and data named by content. Everything a user got wrong is found here, before a
// byte is sent.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/os/file.h"
#include "base/result.h"
#include "job/spec.h"

namespace weft::cli {

struct UploadFile {
  std::string sha256;
  uint64_t bytes = 0;
  os::Path path;
};

// Owns a temporary folder with the files that exist nowhere else; removed with the object.
class Submission {
 public:
  static Result<Submission> prepare(const job::JobSpec& spec);
  ~Submission();
  Submission(Submission&&) noexcept;
  Submission& operator=(Submission&&) = delete;

  const nlohmann::json& body() const { return body_; }  // JobSubmission of docs/api.md
  const std::vector<UploadFile>& files() const { return files_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Submission() = default;
  struct Builder;

  nlohmann::json body_;
  std::vector<UploadFile> files_;
  std::vector<std::string> warnings_;
  os::Path temporary_;
};

}  // namespace weft::cli
