// Messages whose tensors stay where the network put them.
//
// Protobuf would copy the data of a request's tensors out of gRPC's slices, and
// that of a response's into them. Here a request is parsed without this data,
// and a response is laid out first, so that rows are written into the bytes
// that gRPC sends: one copy on each side, between wire and batch.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "moe/v1/moe.pb.h"
#include "server/wire/message_head.h"
#include "server/wire/tensor_codec.h"
#include "server/wire/wire_bytes.h"

namespace moe {

// The bytes of a message, in gRPC's slices, which it owns. Views of them stay
// good when it is moved.
// Thread-safety: thread-compatible.
class MessageBytes {
 public:
  MessageBytes() = default;
  MessageBytes(MessageBytes&&) = default;
  MessageBytes& operator=(MessageBytes&&) = default;

  // Once. False if gRPC can't give them.
  bool Hold(const grpc::ByteBuffer& bytes);
  // The bytes from position `first` on; a view.
  WireBytes From(size_t first) const { return WireBytes(pieces_, first); }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<WireBytes::Piece> pieces_;
};

// Fields of a message from one number to another; none by default.
struct FieldRange {
  int first = 1;
  int last = 0;

  bool Has(int field) const { return field >= first && field <= last; }
};

// The data of a request's tensors. Owns gRPC's slices; views of them stay good
// when it is moved.
// Thread-safety: thread-compatible.
class TensorData {
 public:
  TensorData() = default;
  TensorData(TensorData&&) = default;
  TensorData& operator=(TensorData&&) = default;

  // Parses a message as protobuf does, but leaves the data of `tensors` in
  // place: their `data` stays empty. Of `lists`, which are repeated numbers, it
  // leaves the first packed one of each field; what else they have is parsed.
  // Errors: INVALID_ARGUMENT if the bytes are no such message, or if there are
  // more than kMaxHeadBytes besides what is left in place.
  absl::Status Parse(const grpc::ByteBuffer& bytes, FieldRange tensors,
                     google::protobuf::MessageLite* message,
                     FieldRange lists = {});

  // The bytes of the list of field `field`.
  struct List {
    WireBytes bytes{};
    size_t size = 0;
  };
  List ListOf(int field) const;
  // The tensor of field `field`, whose message part is `head`.
  WireTensor Tensor(int field, const v1::Tensor& head) const;

 private:
  struct Range {
    int field;
    size_t first;
    size_t size;
  };

  bool Read(const grpc::ByteBuffer& bytes, FieldRange tensors, FieldRange lists,
            MessageHead* head);
  // The index of a field's range; that of none if there is none yet.
  size_t Find(int field) const;

  MessageBytes bytes_;
  std::vector<Range> ranges_;
};

// A response, or a request to a shard, as the bytes that gRPC sends.
// Thread-safety: thread-compatible.
class OutgoingMessage {
 public:
  struct TensorPlan {
    int field;  // of the message
    v1::DType dtype;
    int64_t rows;
    int64_t cols;
  };

  // Makes room for a message of tensors, after fields that are there as bytes;
  // as field `inside_field` of another message, if that is not 0.
  void Reserve(absl::string_view fields, absl::Span<const TensorPlan> tensors,
               int inside_field);

  // Rows of a matrix that are one field of the message, or a part of it.
  struct Rows {
    std::string before;  // bytes of the message between the last rows and these
    int64_t rows;
    int64_t row_bytes;
  };
  // Makes room for a message that is made of `rows`, in order.
  void Reserve(absl::Span<const Rows> rows, int inside_field);

  // Where the fields end that were there as bytes: the last of them may still
  // be written.
  char* FieldsEnd() const { return fields_end_; }
  // Where row `row` of the tensor that was planned as number `index` goes.
  char* Row(size_t index, int64_t row) const;

  // Gives the message away; every row must have been written.
  grpc::ByteBuffer Take();

 private:
  struct Place {
    char* data;
    int64_t row_bytes;
  };
  grpc::Slice slice_;
  char* fields_end_ = nullptr;
  std::vector<Place> places_;
};

}  // namespace moe
