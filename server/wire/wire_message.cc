#include "server/wire/wire_message.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/base/check.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "server/wire/wire_fields.h"

namespace moe {
namespace {

using google::protobuf::io::CodedInputStream;
using Wire = google::protobuf::internal::WireFormatLite;

constexpr uint32_t kTensorDataTag = Wire::MakeTag(
    v1::Tensor::kDataFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED);

// Copies a tensor message up to the input's limit, but for its data, whose last
// occurrence counts, as in protobuf.
bool CopyTensorHead(CodedInputStream& input, MessageHead* head, size_t* first,
                    size_t* size) {
  for (int begin = input.CurrentPosition(); const uint32_t tag = ReadTag(input);
       begin = input.CurrentPosition()) {
    if (tag != kTensorDataTag) {
      if (!SkipField(input, tag) ||
          !head->Copy(begin, input.CurrentPosition())) {
        return false;
      }
      continue;
    }
    int length = 0;
    if (!ReadLength(input, &length)) return false;
    *first = static_cast<size_t>(input.CurrentPosition());
    *size = static_cast<size_t>(length);
    if (!input.Skip(length)) return false;
  }
  return input.ConsumedEntireMessage();
}

}  // namespace

bool MessageBytes::Hold(const grpc::ByteBuffer& bytes) {
  if (!bytes.Dump(&slices_).ok()) return false;
  size_t begin = 0;
  for (const grpc::Slice& slice : slices_) {
    pieces_.push_back({.begin = begin,
                       .data = reinterpret_cast<const char*>(slice.begin()),
                       .size = slice.size()});
    begin += slice.size();
  }
  return true;
}

absl::Status TensorData::Parse(const grpc::ByteBuffer& bytes,
                               FieldRange tensors,
                               google::protobuf::MessageLite* message,
                               FieldRange lists) {
  const bool held =
      bytes_.Hold(bytes) &&
      bytes.Length() <= static_cast<size_t>(std::numeric_limits<int>::max());
  MessageHead head(bytes_.From(0), kMaxHeadBytes);
  return head.ParseTo(held && Read(bytes, tensors, lists, &head), message);
}

bool TensorData::Read(const grpc::ByteBuffer& bytes, FieldRange tensors,
                      FieldRange lists, MessageHead* head) {
  grpc::ByteBuffer copy(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  if (!reader.status().ok()) return false;
  CodedInputStream input(&reader);
  input.PushLimit(static_cast<int>(bytes.Length()));
  for (int begin = 0; const uint32_t tag = ReadTag(input);
       begin = input.CurrentPosition()) {
    const int field = Wire::GetTagFieldNumber(tag);
    const bool bytes_follow =
        Wire::GetTagWireType(tag) == Wire::WIRETYPE_LENGTH_DELIMITED;
    const size_t at = Find(field);
    const bool list = bytes_follow && lists.Has(field) && at == ranges_.size();
    if (!list && !(bytes_follow && tensors.Has(field))) {
      if (!SkipField(input, tag) ||
          !head->Copy(begin, input.CurrentPosition())) {
        return false;
      }
      continue;
    }
    int length = 0;
    if (!ReadLength(input, &length)) return false;
    if (at == ranges_.size()) {
      ranges_.push_back({.field = field, .first = 0, .size = 0});
    }
    Range& range = ranges_[at];
    if (list) {
      range.first = static_cast<size_t>(input.CurrentPosition());
      range.size = static_cast<size_t>(length);
      if (!input.Skip(length)) return false;
      continue;
    }
    const size_t tensor = head->BeginMessage();
    const auto limit = input.PushLimit(length);
    if (!CopyTensorHead(input, head, &range.first, &range.size) ||
        input.BytesUntilLimit() != 0 || !head->EndMessage(tensor, field)) {
      return false;
    }
    input.PopLimit(limit);
  }
  return input.ConsumedEntireMessage();
}

size_t TensorData::Find(int field) const {
  const auto range = std::find_if(
      ranges_.begin(), ranges_.end(),
      [field](const Range& known) { return known.field == field; });
  return static_cast<size_t>(range - ranges_.begin());
}

TensorData::List TensorData::ListOf(int field) const {
  const size_t at = Find(field);
  if (at == ranges_.size()) return {};
  return {.bytes = bytes_.From(ranges_[at].first), .size = ranges_[at].size};
}

WireTensor TensorData::Tensor(int field, const v1::Tensor& head) const {
  const size_t at = Find(field);
  if (at == ranges_.size()) return WireTensor(head);
  return WireTensor(head, bytes_.From(ranges_[at].first), ranges_[at].size);
}

void OutgoingMessage::Reserve(absl::string_view fields,
                              absl::Span<const TensorPlan> tensors,
                              int inside_field) {
  std::vector<Rows> parts;
  for (const TensorPlan& plan : tensors) {
    v1::Tensor head;
    head.set_dtype(plan.dtype);
    head.add_shape(plan.rows);
    head.add_shape(plan.cols);
    const int64_t row_bytes = plan.cols * ElementBytes(plan.dtype);
    const auto data_bytes = static_cast<size_t>(plan.rows * row_bytes);
    const std::string inside =
        head.SerializeAsString() +
        FieldHead(v1::Tensor::kDataFieldNumber, data_bytes);
    parts.push_back(
        {.before = FieldHead(plan.field, inside.size() + data_bytes) + inside,
         .rows = plan.rows,
         .row_bytes = row_bytes});
  }
  parts.front().before.insert(0, fields.data(), fields.size());
  Reserve(parts, inside_field);
  fields_end_ = places_.front().data -
                static_cast<int64_t>(parts.front().before.size()) +
                static_cast<int64_t>(fields.size());
}

void OutgoingMessage::Reserve(absl::Span<const Rows> rows, int inside_field) {
  size_t size = 0;
  for (const Rows& part : rows) {
    size +=
        part.before.size() + static_cast<size_t>(part.rows * part.row_bytes);
  }
  const std::string around =
      inside_field > 0 ? FieldHead(inside_field, size) : "";
  slice_ = grpc::Slice(around.size() + size);
  // Nobody else has the slice yet.
  auto* to = const_cast<uint8_t*>(slice_.begin());
  to = std::copy(around.begin(), around.end(), to);
  places_.clear();
  for (const Rows& part : rows) {
    to = std::copy(part.before.begin(), part.before.end(), to);
    places_.push_back(
        {.data = reinterpret_cast<char*>(to), .row_bytes = part.row_bytes});
    to += part.rows * part.row_bytes;
  }
  MOE_CHECK(to == slice_.end());
}

char* OutgoingMessage::Row(size_t index, int64_t row) const {
  return places_[index].data + row * places_[index].row_bytes;
}

grpc::ByteBuffer OutgoingMessage::Take() {
  grpc::ByteBuffer bytes(&slice_, 1);
  slice_ = grpc::Slice();
  places_.clear();
  return bytes;
}

}  // namespace moe
