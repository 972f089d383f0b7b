#include "server/placement/placement.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/text.h"
#include "moe/v1/placement.pb.h"
#include "server/common/read_file.h"
#include "server/common/refuse.h"

namespace moe {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxTargetBytes = 1024;

// What errors show of a set at most: its first ranges.
constexpr size_t kMaxRangesShown = 8;

bool IsShardName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  c == '_' || c == '.' || c == '-';
         });
}

// Only what tells a target from a slip of the pen; gRPC knows the rest.
bool IsTarget(absl::string_view target) {
  if (target.size() > kMaxTargetBytes ||
      !std::all_of(target.begin(), target.end(), [](char c) {
        return absl::ascii_isgraph(static_cast<unsigned char>(c));
      })) {
    return false;
  }
  for (const absl::string_view scheme :
       {"dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "xds:"}) {
    if (absl::StartsWith(target, scheme)) {
      return target.find_first_not_of('/', scheme.size()) !=
             absl::string_view::npos;
    }
  }
  return false;
}

absl::Status CheckTargets(absl::string_view shard,
                          const std::vector<std::string>& targets) {
  if (targets.empty()) return Refuse(shard, ".targets: want one, got none");
  std::set<absl::string_view> distinct;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!IsTarget(targets[i])) {
      return Refuse(shard, ".targets[", i,
                    "]: want a gRPC target as in dns:///HOST:PORT, "
                    "ipv4:ADDRESS:PORT or unix:PATH, got ",
                    Quote(targets[i]));
    }
    if (!distinct.insert(targets[i]).second) {
      return Refuse(shard, ".targets[", i, "]: want distinct ones, got ",
                    Quote(targets[i]), " twice");
    }
  }
  return absl::OkStatus();
}

// Absent for empty text, which means all.
absl::StatusOr<std::optional<IndexSet>> ParseSet(const std::string& field,
                                                 absl::string_view text) {
  if (text.empty()) return std::nullopt;
  MOE_ASSIGN_OR_RETURN(IndexSet set, IndexSet::Parse(field, text));
  if (set.empty()) {
    return Refuse(field, ": want numbers and ranges as in 0-3,7; got ",
                  Quote(text));
  }
  return std::optional<IndexSet>(std::move(set));
}

// One line of protobuf's, which shows the place in further ones.
std::string FirstLine(absl::string_view message) {
  const std::string quoted = Quote(message.substr(0, message.find('\n')));
  return quoted.substr(1, quoted.size() - 2);
}

// The first ranges of a set.
std::string Shorten(const IndexSet& set) {
  if (set.ranges().size() <= kMaxRangesShown) return set.ToString();
  IndexSet shown;
  for (const IndexSet::Range range : set.ranges().first(kMaxRangesShown)) {
    shown.Add(range);
  }
  return absl::StrCat(shown.ToString(), ",...");
}

}  // namespace

absl::StatusOr<Placement> Placement::Parse(absl::string_view json) {
  v1::Placement file;
  const google::protobuf::util::Status parsed =
      google::protobuf::util::JsonStringToMessage({json.data(), json.size()},
                                                  &file);
  if (!parsed.ok()) {
    return Refuse(
        "placement: want the JSON of a moe.v1.Placement: ",
        FirstLine({parsed.message().data(), parsed.message().size()}));
  }
  if (file.shards().empty()) {
    return Refuse("placement: shards: want one, got none");
  }
  Placement placement;
  std::set<std::string> names;
  for (int i = 0; i < file.shards_size(); ++i) {
    const v1::Shard& shard = file.shards(i);
    std::string where = absl::StrCat("placement: shards[", i, "]");
    if (!IsShardName(shard.name())) {
      return Refuse(where, ".name: want 1 to ", kMaxNameBytes,
                    " of letters, digits, '_', '.' and '-', got ",
                    Quote(shard.name()));
    }
    if (!names.insert(shard.name()).second) {
      return Refuse(where, ".name: want distinct ones, got \"", shard.name(),
                    "\" twice");
    }
    absl::StrAppend(&where, " (", shard.name(), ")");
    std::vector<std::string> targets(shard.targets().begin(),
                                     shard.targets().end());
    MOE_RETURN_IF_ERROR(CheckTargets(where, targets));
    placement.shards_.push_back(
        {.name = shard.name(), .targets = std::move(targets)});

    if (shard.experts().empty()) {
      return Refuse(where, ".experts: want one, got none");
    }
    std::vector<Entry>& entries = placement.entries_.emplace_back();
    for (int j = 0; j < shard.experts_size(); ++j) {
      const v1::PlacedExperts& experts = shard.experts(j);
      const std::string entry = absl::StrCat(where, ".experts[", j, "]");
      Entry& held = entries.emplace_back();
      held.model = experts.model();
      MOE_ASSIGN_OR_RETURN(held.layers,
                           ParseSet(entry + ".layers", experts.layers()));
      MOE_ASSIGN_OR_RETURN(held.experts,
                           ParseSet(entry + ".experts", experts.experts()));
    }
  }
  return placement;
}

absl::StatusOr<Placement> Placement::ReadFile(const std::string& path) {
  MOE_ASSIGN_OR_RETURN(const std::string text,
                       ReadSmallFile("--shards", path, kMaxFileBytes));
  absl::StatusOr<Placement> placement = Parse(text);
  if (placement.ok()) return placement;
  return Refuse("--shards: ", path, ": ", placement.status().message());
}

std::optional<int> Placement::Find(absl::string_view name) const {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].name == name) return static_cast<int>(i);
  }
  return std::nullopt;
}

bool Placement::Entry::Covers(absl::string_view of_model, int layer) const {
  return (model.empty() || model == of_model) &&
         (!layers.has_value() || layers->Contains(layer));
}

std::vector<int> Placement::ShardsOf(absl::string_view model, int layer,
                                     int expert) const {
  std::vector<int> holders;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const bool holds = std::any_of(entries_[i].begin(), entries_[i].end(),
                                   [&](const Entry& entry) {
                                     return entry.Covers(model, layer) &&
                                            (!entry.experts.has_value() ||
                                             entry.experts->Contains(expert));
                                   });
    if (holds) holders.push_back(static_cast<int>(i));
  }
  return holders;
}

std::vector<int32_t> Placement::ExpertsOf(int shard, absl::string_view model,
                                          int layer, int num_experts) const {
  IndexSet held;
  for (const Entry& entry : entries_[static_cast<size_t>(shard)]) {
    if (!entry.Covers(model, layer)) continue;
    if (!entry.experts.has_value()) {
      held = IndexSet::UpTo(num_experts);
      break;
    }
    held.AddAll(*entry.experts);
  }
  const std::vector<int> values = held.Below(num_experts).Values();
  return {values.begin(), values.end()};
}

absl::Status Placement::CheckCover(
    absl::string_view model, int layer, int num_experts,
    absl::Span<const int32_t> local_experts) const {
  const std::string where =
      absl::StrCat("model ", Quote(model), ", layer ", layer, ": ");
  const IndexSet all = IndexSet::UpTo(num_experts);
  IndexSet placed;
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const Entry& entry : entries_[i]) {
      if (!entry.Covers(model, layer)) continue;
      if (!entry.experts.has_value()) {
        placed.AddAll(all);
        continue;
      }
      placed.AddAll(*entry.experts);
      const IndexSet outside = entry.experts->Without(all);
      if (!outside.empty()) {
        return Refuse(where, "want experts below ", num_experts, ", got ",
                      Shorten(outside), " on shard ", shards_[i].name);
      }
    }
  }
  for (const int32_t expert : local_experts) {
    if (expert < 0 || expert >= num_experts) {
      return Refuse(where, "want experts below ", num_experts, ", got ", expert,
                    " in this process");
    }
  }
  IndexSet here;
  for (const int32_t expert : local_experts) here.Add({expert, expert});
  placed.AddAll(here);
  const IndexSet missing = all.Without(placed);
  if (!missing.empty()) {
    return Refuse(where, "want every expert on a shard, got none for ",
                  Shorten(missing), " of ", num_experts);
  }
  return absl::OkStatus();
}

}  // namespace moe
