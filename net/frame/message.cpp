#include "net/message.h"

#include <fmt/format.h>

namespace weft::net {
namespace {

const char* kind_name(MessageKind kind) {
  switch (kind) {
    case MessageKind::kActivation:
      return "activation";
    case MessageKind::kGradient:
      return "gradient";
    case MessageKind::kEvalActivation:
      return "evaluation activation";
    case MessageKind::kTiedGradient:
      return "tied gradient";
    case MessageKind::kTiedWeight:
      return "tied weight";
    case MessageKind::kNorms:
      return "norms";
    case MessageKind::kClip:
      return "clip factor";
  }
  return "unknown kind";
}

}  // namespace

std::string MessageKey::text() const {
  return fmt::format("{} step {} micro-batch {} edge {} from stage {}", kind_name(kind), step,
                     micro_batch, edge, from);
}

}  // namespace weft::net
