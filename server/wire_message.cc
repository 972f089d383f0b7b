#include "server/wire_message.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "experts/base/check.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace moe {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

constexpr uint32_t kTensorDataTag = Wire::MakeTag(
    v1::Tensor::kDataFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED);

// Copies a tensor message up to the input's limit, but for its data, whose last
// occurrence counts, as in protobuf.
bool CopyTensorHead(CodedInputStream& input, std::string* head, size_t* first,
                    size_t* size) {
  StringOutputStream stream(head);
  CodedOutputStream output(&stream);
  while (true) {
    const uint32_t tag = input.ReadTag();
    if (tag == 0) return input.ConsumedEntireMessage();
    if (tag != kTensorDataTag) {
      if (!Wire::SkipField(&input, tag, &output)) return false;
      continue;
    }
    uint32_t length = 0;
    if (!input.ReadVarint32(&length)) return false;
    *first = static_cast<size_t>(input.CurrentPosition());
    *size = length;
    // Skip takes an int, and refuses what goes beyond the limit.
    if (static_cast<int>(length) < 0 || !input.Skip(static_cast<int>(length))) {
      return false;
    }
  }
}

size_t TagBytes(int field) {
  return CodedOutputStream::VarintSize32(
      Wire::MakeTag(field, Wire::WIRETYPE_LENGTH_DELIMITED));
}

// Bytes of a field of `size` bytes.
size_t FieldBytes(int field, size_t size) {
  return TagBytes(field) +
         CodedOutputStream::VarintSize64(static_cast<uint64_t>(size)) + size;
}

// Writes the tag and the length of such a field.
uint8_t* WriteFieldHead(int field, size_t size, uint8_t* to) {
  to = CodedOutputStream::WriteVarint32ToArray(
      Wire::MakeTag(field, Wire::WIRETYPE_LENGTH_DELIMITED), to);
  return CodedOutputStream::WriteVarint64ToArray(size, to);
}

}  // namespace

bool TensorData::Parse(const grpc::ByteBuffer& bytes, int first_tensor,
                       int last_tensor,
                       google::protobuf::MessageLite* message) {
  if (!bytes.Dump(&slices_).ok()) return false;
  size_t begin = 0;
  for (const grpc::Slice& slice : slices_) {
    pieces_.push_back({.begin = begin,
                       .data = reinterpret_cast<const char*>(slice.begin()),
                       .size = slice.size()});
    begin += slice.size();
  }
  // The message without the data of its tensors.
  std::string rest;
  {
    grpc::ByteBuffer copy(bytes);  // shares the slices
    grpc::ProtoBufferReader reader(&copy);
    if (!reader.status().ok()) return false;
    CodedInputStream input(&reader);
    StringOutputStream stream(&rest);
    CodedOutputStream output(&stream);
    std::string head;
    while (const uint32_t tag = input.ReadTag()) {
      const int field = Wire::GetTagFieldNumber(tag);
      if (Wire::GetTagWireType(tag) != Wire::WIRETYPE_LENGTH_DELIMITED ||
          field < first_tensor || field > last_tensor) {
        if (!Wire::SkipField(&input, tag, &output)) return false;
        continue;
      }
      uint32_t length = 0;
      if (!input.ReadVarint32(&length) || static_cast<int>(length) < 0) {
        return false;
      }
      auto range = std::find_if(
          ranges_.begin(), ranges_.end(),
          [field](const Range& known) { return known.field == field; });
      if (range == ranges_.end()) {
        range = ranges_.insert(range, {.field = field, .first = 0, .size = 0});
      }
      head.clear();
      const auto limit = input.PushLimit(static_cast<int>(length));
      if (!CopyTensorHead(input, &head, &range->first, &range->size) ||
          input.BytesUntilLimit() != 0) {
        return false;
      }
      input.PopLimit(limit);
      output.WriteTag(tag);
      output.WriteVarint32(static_cast<uint32_t>(head.size()));
      output.WriteString(head);
    }
    if (!input.ConsumedEntireMessage()) return false;
  }
  return message->ParseFromString(rest);
}

WireTensor TensorData::Tensor(int field, const v1::Tensor& head) const {
  for (const Range& range : ranges_) {
    if (range.field == field) {
      return WireTensor(head, WireBytes(pieces_, range.first), range.size);
    }
  }
  return WireTensor(head);
}

void AnswerBytes::Reserve(absl::string_view request_id,
                          absl::Span<const TensorPlan> tensors,
                          int inside_field) {
  constexpr int kRequestIdField = v1::ForwardResponse::kRequestIdFieldNumber;
  static_assert(kRequestIdField == v1::RouteResponse::kRequestIdFieldNumber);
  // Element type and shape of each tensor, encoded.
  std::vector<std::string> heads;
  std::vector<size_t> sizes;  // of each tensor, with its data
  size_t size =
      request_id.empty() ? 0 : FieldBytes(kRequestIdField, request_id.size());
  for (const TensorPlan& plan : tensors) {
    v1::Tensor head;
    head.set_dtype(plan.dtype);
    head.add_shape(plan.rows);
    head.add_shape(plan.cols);
    heads.push_back(head.SerializeAsString());
    const auto data_bytes =
        static_cast<size_t>(plan.rows * plan.cols * ElementBytes(plan.dtype));
    sizes.push_back(heads.back().size() +
                    FieldBytes(v1::Tensor::kDataFieldNumber, data_bytes));
    size += FieldBytes(plan.field, sizes.back());
  }
  const size_t total = inside_field > 0 ? FieldBytes(inside_field, size) : size;
  slice_ = grpc::Slice(total);
  // Nobody else has the slice yet.
  auto* to = const_cast<uint8_t*>(slice_.begin());
  const uint8_t* const end = to + total;
  if (inside_field > 0) to = WriteFieldHead(inside_field, size, to);
  if (!request_id.empty()) {
    to = WriteFieldHead(kRequestIdField, request_id.size(), to);
    std::memcpy(to, request_id.data(), request_id.size());
    to += request_id.size();
  }
  places_.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorPlan& plan = tensors[i];
    const int64_t row_bytes = plan.cols * ElementBytes(plan.dtype);
    const auto data_bytes = static_cast<size_t>(plan.rows * row_bytes);
    to = WriteFieldHead(plan.field, sizes[i], to);
    to = std::copy(heads[i].begin(), heads[i].end(), to);
    to = WriteFieldHead(v1::Tensor::kDataFieldNumber, data_bytes, to);
    places_.push_back(
        {.data = reinterpret_cast<char*>(to), .row_bytes = row_bytes});
    to += data_bytes;
  }
  MOE_CHECK(to == end);
}

char* AnswerBytes::Row(size_t index, int64_t row) const {
  return places_[index].data + row * places_[index].row_bytes;
}

grpc::ByteBuffer AnswerBytes::Take() {
  grpc::ByteBuffer bytes(&slice_, 1);
  slice_ = grpc::Slice();
  places_.clear();
  return bytes;
}

}  // namespace moe
