// What an assignment needs on disk before its worker can start: blobs from whoever has them, the
// graphs in text form, a key and certificate of this assignment only. Blocking; transfer thread.
#pragma once

#include <functional>

#include "daemon/membership.h"
#include "job/worker_spec.h"
#include "net/blob/blob_store.h"
#include "net/proto/control.pb.h"

namespace weft::daemon {

// dir: the assignment's own folder, made here. Returns the worker's spec with every path filled.
// cancelled: asked between chunks, so that a stopped assignment does not hold the thread.
Result<job::WorkerSpec> prepare_files(const Membership& member, net::BlobStore& blobs,
                                      const proto::Prepare& prepare, const os::Path& dir,
                                      const std::function<bool()>& cancelled);

// Uploads a checkpoint shard to the broker's blob store; returns what to tell the broker.
Result<proto::CheckpointStored> upload_shard(const Membership& member, const os::Path& file,
                                             const std::function<bool()>& cancelled);

}  // namespace weft::daemon
