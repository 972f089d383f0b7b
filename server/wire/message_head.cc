#include "server/wire/message_head.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/wire/wire_fields.h"

namespace moe {

absl::Status NoSuchMessage(const google::protobuf::MessageLite& wanted) {
  const std::string name = wanted.GetTypeName();
  const char* const article =
      absl::StrContains("aeiou", name.substr(0, 1)) ? "an" : "a";
  return absl::InvalidArgumentError(
      absl::StrCat("request: want ", article, " ", name, " message"));
}

bool MessageHead::Fits(size_t more) {
  if (bytes_.size() + more > max_bytes_) too_large_ = true;
  return !too_large_;
}

bool MessageHead::Copy(int begin, int end) {
  const auto count = static_cast<size_t>(end - begin);
  if (!Fits(count)) return false;
  const size_t size = bytes_.size();
  bytes_.resize(size + count);
  message_.From(static_cast<size_t>(begin)).CopyTo(bytes_.data() + size, count);
  return true;
}

bool MessageHead::EndMessage(size_t begin, int field) {
  const std::string head = FieldHead(field, bytes_.size() - begin);
  if (!Fits(head.size())) return false;
  bytes_.insert(begin, head);
  return true;
}

absl::Status MessageHead::ParseTo(
    bool read, google::protobuf::MessageLite* message) const {
  if (too_large_) {
    return absl::InvalidArgumentError(
        absl::StrCat("request: want at most ", max_bytes_,
                     " bytes besides the data of tensors, got more"));
  }
  const SilentProtobuf silent;
  if (!read || !message->ParseFromString(bytes_)) {
    return NoSuchMessage(*message);
  }
  return absl::OkStatus();
}

}  // namespace moe
