// A ModelInferRequest of the Open Inference Protocol whose tensors stay where
// the network put them. See wire_message.h for why.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/inference.pb.h"
#include "server/wire/message_head.h"
#include "server/wire/wire_bytes.h"
#include "server/wire/wire_message.h"

namespace google::protobuf::io {
class CodedInputStream;
}  // namespace google::protobuf::io

namespace moe {

// Owns gRPC's slices; views of the data stay good when it is moved.
// Thread-safety: thread-compatible.
class InferMessage {
 public:
  InferMessage() = default;
  InferMessage(InferMessage&&) = default;
  InferMessage& operator=(InferMessage&&) = default;

  // The elements of a tensor, little-endian; a view into the message.
  struct Data {
    WireBytes bytes;
    size_t size = 0;
  };

  // The `contents` of an input.
  class Contents {
   public:
    // Whether any field has elements; whether `field` of InferTensorContents
    // has.
    bool any() const { return fields_ != 0; }
    bool has(int field) const { return (fields_ >> field & 1) != 0; }
    // Whether no field but this one has elements.
    bool only(int field) const { return fields_ == 1U << field; }

   private:
    friend class InferMessage;
    uint32_t fields_ = 0;  // bit f: field f has elements
    // fp32_contents: in the message as long as they lie together.
    std::optional<Data> in_place_;
    std::string floats_;
    // int_contents: as varints until they are asked for, which are smaller.
    std::string varints_;
    size_t num_ints_ = 0;
    std::string ints_;
  };

  // Parses a message as protobuf does, but for the data of its tensors. Once.
  // Errors: INVALID_ARGUMENT if the bytes are no such message, or if there are
  // more than kMaxHeadBytes besides the data.
  absl::Status Parse(const grpc::ByteBuffer& bytes);

  // All but `contents` and `raw_input_contents`.
  const inference::ModelInferRequest& head() const { return head_; }
  // Frees it, who needs the data alone: it may take many times its bytes.
  void DropHead() { head_ = inference::ModelInferRequest(); }

  // Entries of raw_input_contents.
  size_t num_raw() const { return num_raw_; }
  // Entry i. Requires: i < num_raw() and i < kMaxRaw.
  static constexpr size_t kMaxRaw = 8;  // more than there are inputs
  const Data& Raw(size_t i) const { return raw_[i]; }

  // The contents of input i.
  const Contents& ContentsOf(int i) const {
    return contents_[static_cast<size_t>(i)];
  }
  // The elements of fp32_contents.
  Data FloatsOf(int i) const;
  // How many elements int_contents has. IntsOf makes up to four times the bytes
  // of them that the message has: for as many as make sense.
  size_t NumInts(int i) const { return ContentsOf(i).num_ints_; }
  Data IntsOf(int i);
  // What was copied of the contents.
  int64_t copied_bytes() const;

 private:
  using Input = google::protobuf::io::CodedInputStream;
  bool ParseAll(const grpc::ByteBuffer& bytes, MessageHead* head);
  bool ParseInput(Input& input, MessageHead* head);
  bool ParseContents(Input& input, Contents* contents);
  bool ParseFloats(Input& input, Contents* contents);
  bool ParseInts(Input& input, bool packed, Contents* contents);
  static void MoveFloats(const Input& input, Contents* contents);

  MessageBytes bytes_;
  inference::ModelInferRequest head_;
  std::vector<Contents> contents_;
  std::vector<Data> raw_;  // the first kMaxRaw
  size_t num_raw_ = 0;
};

}  // namespace moe
