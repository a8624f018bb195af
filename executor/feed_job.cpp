#include "executor/feed_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "executor/convert.h"
#include "executor/feed_arrays.h"
#include "executor/feed_tokens.h"
#include "executor/feed_vocabulary.h"
#include "job/sample_order.h"

namespace weft::executor {
namespace {

const char* split_name(Split split) {
  return split == Split::kTrain ? "train" : "eval";
}

// One graph input in one split: its column and what the graph expects of it.
struct Source {
  job::Binding binding;
  opdag::TensorMeta meta;
  std::unique_ptr<FeedColumn> column;
};

struct SplitSources {
  std::map<std::string, Source> by_input;
  int64_t samples = 0;
  int64_t micro_batch = 0;
};

Result<at::Tensor> convert(at::Tensor rows, const Source& source) {
  const at::ScalarType declared = to_scalar_type(source.meta.dtype);
  at::ScalarType cast = declared;
  if (!source.binding.cast.empty()) {
    const auto dtype = dtype_from_name(source.binding.cast);
    if (!dtype) {
      return make_error(Code::kInvalid, fmt::format("input {}: unknown cast dtype {}",
                                                    source.binding.input, source.binding.cast));
    }
    cast = to_scalar_type(*dtype);
  }
  rows = rows.to(cast);
  if (source.binding.scale != 1.0) rows = rows.mul_(source.binding.scale);
  return rows.to(declared);
}

class JobFeed final : public Feed {
 public:
  JobFeed(SplitSources train, SplitSources eval, std::optional<job::SampleOrder> order,
          int32_t micro_batches)
      : train_(std::move(train)),
        eval_(std::move(eval)),
        order_(std::move(order)),
        micro_batches_(micro_batches) {}

  Result<at::Tensor> input(const std::string& name, Split split, int64_t step,
                           int32_t micro_batch) override {
    const SplitSources& sources = split == Split::kTrain ? train_ : eval_;
    const auto found = sources.by_input.find(name);
    if (found == sources.by_input.end()) {
      return make_error(Code::kNotFound, fmt::format("this stage has no {} data for input {}",
                                                     split_name(split), name));
    }
    const int32_t count = split == Split::kTrain ? micro_batches_ : eval_micro_batches();
    if (step < 0 || micro_batch < 0 || micro_batch >= count) {
      return make_error(Code::kInvalid, fmt::format("micro-batch {} of {} asked at {} step {}",
                                                    micro_batch, count, split_name(split), step));
    }
    try {
      WEFT_TRY(at::Tensor rows,
               found->second.column->rows(samples(sources, split, step, micro_batch)));
      return convert(std::move(rows), found->second);
    } catch (const std::exception& error) {
      return make_error(Code::kInternal,
                        fmt::format("data for input {}: {}", name, exception_text(error)));
    }
  }

  int32_t eval_micro_batches() const override {
    return eval_.micro_batch == 0 ? 0
                                  : static_cast<int32_t>(std::min<int64_t>(
                                        eval_.samples / eval_.micro_batch, INT32_MAX));
  }

 private:
  std::vector<int64_t> samples(const SplitSources& sources, Split split, int64_t step,
                               int32_t micro_batch) {
    const int64_t first = micro_batch * sources.micro_batch;
    std::vector<int64_t> result(static_cast<size_t>(sources.micro_batch));
    if (split == Split::kEval) {
      for (size_t i = 0; i < result.size(); ++i) result[i] = first + static_cast<int64_t>(i);
      return result;
    }
    // Micro-batches of one step follow each other: one look-up serves them all.
    if (step != cached_step_) {
      cached_samples_ = order_->at(step);
      cached_step_ = step;
    }
    std::copy_n(cached_samples_.begin() + first, result.size(), result.begin());
    return result;
  }

  SplitSources train_, eval_;
  std::optional<job::SampleOrder> order_;
  int32_t micro_batches_;
  int64_t cached_step_ = -1;
  std::vector<int64_t> cached_samples_;
};

// Opens the columns of one split over one graph.
class SplitOpener {
 public:
  SplitOpener(const opdag::Graph& graph, const job::JobSpec& spec, const FeedFiles& files,
              Split split)
      : graph_(graph), spec_(spec), files_(files), split_(split) {}

  Result<SplitSources> open(const std::set<std::string>& inputs) {
    WEFT_TRY(const auto bindings, bind_inputs(graph_, spec_));
    vocabulary_ = vocabulary_of(graph_, bindings);
    SplitSources sources;
    for (const std::string& input : inputs) {
      const auto found = bindings.find(input);
      if (found == bindings.end()) continue;  // pruned from this graph
      Source source;
      source.binding = found->second;
      source.meta = graph_.value(graph_.find_leaf(input)->value).meta;
      WEFT_TRY(source.column, column(source));
      WEFT_TRY_STATUS(check(source, sources));
      sources.samples = source.column->samples();
      sources.micro_batch = source.meta.sizes[0];
      sources.by_input.emplace(input, std::move(source));
    }
    return sources;
  }

 private:
  std::string path_of(const std::string& key) const {
    const auto found = files_.paths.find(key);
    return found == files_.paths.end() ? std::string() : found->second;
  }

  Result<std::unique_ptr<FeedColumn>> column(const Source& source) const {
    const std::string& name = source.binding.column;
    if (job::is_token_column(name)) {
      const std::string path = path_of(split_name(split_));
      if (path.empty()) return missing(split_name(split_), source);
      WEFT_TRY(auto file, job::open_token_file(path, files_.token_dtype));
      TokenColumnOptions options;
      options.sequence = source.meta.sizes.size() == 2 ? source.meta.sizes[1] : 0;
      options.next = name == "next_tokens";
      options.vocabulary = vocabulary_;
      options.file = path;
      return make_token_column(std::move(file), options);
    }
    const std::string key = fmt::format("{}/{}", split_name(split_), name);
    const std::string path = path_of(key);
    if (path.empty()) return missing(key, source);
    WEFT_TRY(auto array, job::open_npy(path));
    return make_array_column(std::move(array), path);
  }

  static Error missing(const std::string& key, const Source& source) {
    return make_error(Code::kInvalid,
                      fmt::format("no data file \"{}\" for column {}, bound to input {}", key,
                                  source.binding.column, source.binding.input),
                      "name the file in [data] of the job file");
  }

  Status check(const Source& source, const SplitSources& others) const {
    const std::string& input = source.binding.input;
    const std::vector<int64_t> expected(source.meta.sizes.begin() + 1, source.meta.sizes.end());
    if (source.column->row_sizes() != expected) {
      return make_error(Code::kInvalid,
                        fmt::format("a row of {} column {} has shape [{}], input {} expects [{}]",
                                    split_name(split_), source.binding.column,
                                    fmt::join(source.column->row_sizes(), ", "), input,
                                    fmt::join(expected, ", ")),
                        "reshape the array, or bind another column");
    }
    const int64_t samples = source.column->samples();
    if (!others.by_input.empty() && samples != others.samples) {
      return make_error(
          Code::kInvalid,
          fmt::format("{} columns disagree: {} has {} samples, {} has {}", split_name(split_),
                      source.binding.column, samples,
                      others.by_input.begin()->second.binding.column, others.samples));
    }
    if (split_ == Split::kEval && samples < source.meta.sizes[0]) {
      return make_error(Code::kInvalid,
                        fmt::format("the eval set has {} samples, fewer than one micro-batch of {}",
                                    samples, source.meta.sizes[0]),
                        "give more eval data, or none");
    }
    if (source.binding.scale != 1.0 && !dtype_is_floating(source.meta.dtype)) {
      return make_error(Code::kInvalid,
                        fmt::format("input {} takes {}: scale {} has no meaning there", input,
                                    dtype_name(source.meta.dtype), source.binding.scale));
    }
    return {};
  }

  const opdag::Graph& graph_;
  const job::JobSpec& spec_;
  const FeedFiles& files_;
  Split split_;
  int64_t vocabulary_ = 0;
};

bool has_eval_files(const FeedFiles& files) {
  return std::any_of(files.paths.begin(), files.paths.end(), [](const auto& file) {
    return file.first == "eval" || file.first.starts_with("eval/");
  });
}

}  // namespace

Result<std::unique_ptr<Feed>> make_feed(const opdag::Graph& graph, const opdag::Graph& eval_graph,
                                        const job::JobSpec& spec, const FeedFiles& files,
                                        const std::set<std::string>& inputs) {
  WEFT_TRY(const BatchShape shape, batch_shape(graph, spec));
  WEFT_TRY(auto train, SplitOpener(graph, spec, files, Split::kTrain).open(inputs));
  SplitSources eval;
  if (has_eval_files(files)) {
    WEFT_TRY(eval, SplitOpener(eval_graph, spec, files, Split::kEval).open(inputs));
  }
  std::optional<job::SampleOrder> order;
  if (!train.by_input.empty()) {
    WEFT_TRY(order, job::SampleOrder::make(train.samples, spec.train.batch, spec.train.seed));
  }
  return std::unique_ptr<Feed>(
      new JobFeed(std::move(train), std::move(eval), std::move(order), shape.micro_batches));
}

}  // namespace weft::executor
