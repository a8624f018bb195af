// EffectRunner: does in the world what the coordinator decided: first the store, in one
// transaction, then the messages, then the readers that wait for news. Private to the core.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "broker/core.h"

namespace weft::broker {

class EffectRunner {
 public:
  explicit EffectRunner(Core& core) : core_(core) {}
  // also: what else belongs into the transaction; empty: nothing. An error is that of the
  // transaction: nothing of it is stored, messages went out all the same.
  Status run(const std::vector<Effect>& effects, const std::function<Status()>& also = {});

 private:
  // Store.
  Status store(const PersistPeer& effect);
  Status store(const ErasePeer& effect);
  Status store(const PersistJob& effect);
  Status store(const EraseJob& effect);
  Status store(const EmitEvent& effect);
  Status store(const Decided& effect);
  Status store(const SaveCheckpoint& effect);
  Status store(const CommitCheckpoint& effect);
  Status store(const DropCheckpoint& effect);
  Status store(const TruncateMetrics& effect);
  Status store(const Revoke& effect);
  template <typename Other>
  Status store(const Other&) {
    return {};
  }
  // World.
  void act(const SendWelcome& effect);
  void act(const SendPrepare& effect);
  void act(const SendConnect& effect);
  void act(const SendStart& effect);
  void act(const SendStop& effect);
  void act(const SendHold& effect);
  void act(const SendMeasure& effect);
  void act(const SendDrain& effect);
  void act(const SendRemoved& effect);
  void act(const Revoke& effect);
  void act(const ErasePeer& effect);
  void act(const EraseJob& effect);
  void act(const PersistJob& effect);
  void act(const CommitCheckpoint& effect);
  void act(const EmitEvent& effect);
  void act(const Decided& effect);
  template <typename Other>
  void act(const Other&) {}

  Status put_checkpoint(const std::string& job, int64_t step);
  Status collect_orphans(const std::string& job);
  void collect_orphan_blobs();
  Result<proto::Prepare> prepare_of(const SendPrepare& effect);

  Core& core_;
  std::set<std::string> persisted_jobs_;
  std::set<std::string> orphans_;  // blobs that may have lost their last owner
};

}  // namespace weft::broker
