// What a message holds besides the data of its tensors: names, numbers, shapes,
// and fields that nobody knows.
//
// Protobuf makes up to fifty bytes of an empty field of two. So what it is
// given to parse is bounded, for every message of every service.

#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "google/protobuf/stubs/logging.h"
#include "server/wire/wire_bytes.h"

namespace moe {

// The most bytes that a message may have besides the data of its tensors.
inline constexpr size_t kMaxHeadBytes = 64 << 10;

// Protobuf writes to stderr what it does not like of a message, a line for
// each: callers could fill a log, or a pipe that nobody reads. Nothing is said
// as long as one of these lives.
using SilentProtobuf = google::protobuf::LogSilencer;

// INVALID_ARGUMENT: the bytes of a request are no message of that type.
absl::Status NoSuchMessage(const google::protobuf::MessageLite& wanted);

// Collects those parts of a message that protobuf is to parse, as they came.
// Thread-compatible.
class MessageHead {
 public:
  // message: all of it; a view
  MessageHead(WireBytes message, size_t max_bytes)
      : message_(message), max_bytes_(max_bytes) {}

  // Copies bytes [begin, end) of the message. False: they would be too many.
  bool Copy(int begin, int end);
  // What is copied between the two becomes field `field`, a message.
  size_t BeginMessage() const { return bytes_.size(); }
  // begin: what BeginMessage returned. False: as Copy.
  bool EndMessage(size_t begin, int field);

  // Parses what was copied.
  // read: whether all of the message could be read and copied
  // Errors: INVALID_ARGUMENT if it could not, or protobuf can't either.
  absl::Status ParseTo(bool read, google::protobuf::MessageLite* message) const;

 private:
  bool Fits(size_t more);

  const WireBytes message_;
  const size_t max_bytes_;
  std::string bytes_;
  bool too_large_ = false;
};

}  // namespace moe
