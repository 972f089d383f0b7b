#include "server/wire/infer_message.h"

#include <limits>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "server/wire/wire_fields.h"

namespace moe {
namespace {

using google::protobuf::io::CodedInputStream;
using Wire = google::protobuf::internal::WireFormatLite;
using Elements = inference::InferTensorContents;
using Request = inference::ModelInferRequest;

constexpr int kFloats = Elements::kFp32ContentsFieldNumber;
constexpr int kInts = Elements::kIntContentsFieldNumber;

constexpr uint32_t LengthDelimited(int field) {
  return Wire::MakeTag(field, Wire::WIRETYPE_LENGTH_DELIMITED);
}
constexpr uint32_t kInputTag = LengthDelimited(Request::kInputsFieldNumber);
constexpr uint32_t kRawTag =
    LengthDelimited(Request::kRawInputContentsFieldNumber);
constexpr uint32_t kContentsTag =
    LengthDelimited(Request::InferInputTensor::kContentsFieldNumber);

// Calls `parse` with the input limited to a field, all of which it must read.
template <typename Parse>
bool ReadField(CodedInputStream& input, Parse parse) {
  int length = 0;
  if (!ReadLength(input, &length)) return false;
  const auto limit = input.PushLimit(length);
  if (!parse() || input.BytesUntilLimit() != 0) return false;
  input.PopLimit(limit);
  return true;
}

void AppendWord(uint32_t word, std::string* to) {
  for (int byte = 0; byte < 4; ++byte) {
    to->push_back(static_cast<char>(word >> (8 * byte) & 0xFF));
  }
}

// The bytes up to the limit. Room for elements is made for as many: what grows
// by itself takes twice as much, and is there twice while it moves.
size_t Left(const CodedInputStream& input) {
  return static_cast<size_t>(input.BytesUntilLimit());
}

// Whether elements of `field`, which is one of InferTensorContents, may come in
// this wire type. Others are unknown fields.
bool IsElement(int field, Wire::WireType type) {
  if (type == Wire::WIRETYPE_LENGTH_DELIMITED) return true;
  switch (field) {
    case Elements::kFp32ContentsFieldNumber:
      return type == Wire::WIRETYPE_FIXED32;
    case Elements::kFp64ContentsFieldNumber:
      return type == Wire::WIRETYPE_FIXED64;
    case Elements::kBytesContentsFieldNumber:
      return false;
    default:
      return type == Wire::WIRETYPE_VARINT;
  }
}

}  // namespace

absl::Status InferMessage::Parse(const grpc::ByteBuffer& bytes) {
  const bool held =
      bytes_.Hold(bytes) &&
      bytes.Length() <= static_cast<size_t>(std::numeric_limits<int>::max());
  MessageHead head(bytes_.From(0), kMaxHeadBytes);
  return head.ParseTo(held && ParseAll(bytes, &head), &head_);
}

bool InferMessage::ParseAll(const grpc::ByteBuffer& bytes, MessageHead* head) {
  grpc::ByteBuffer copy(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  if (!reader.status().ok()) return false;
  CodedInputStream input(&reader);
  input.PushLimit(static_cast<int>(bytes.Length()));
  for (int begin = 0; const uint32_t tag = ReadTag(input);
       begin = input.CurrentPosition()) {
    if (tag == kRawTag) {
      int length = 0;
      if (!ReadLength(input, &length)) return false;
      if (num_raw_++ < kMaxRaw) {
        raw_.push_back(
            {.bytes = bytes_.From(static_cast<size_t>(input.CurrentPosition())),
             .size = static_cast<size_t>(length)});
      }
      if (!input.Skip(length)) return false;
    } else if (tag == kInputTag) {
      const size_t message = head->BeginMessage();
      if (!ReadField(input, [&] { return ParseInput(input, head); }) ||
          !head->EndMessage(message, Request::kInputsFieldNumber)) {
        return false;
      }
    } else if (!SkipField(input, tag) ||
               !head->Copy(begin, input.CurrentPosition())) {
      return false;
    }
  }
  return input.ConsumedEntireMessage();
}

// Copies an input up to the limit, but for its contents.
bool InferMessage::ParseInput(Input& input, MessageHead* head) {
  Contents& contents = contents_.emplace_back();
  for (int begin = input.CurrentPosition(); const uint32_t tag = ReadTag(input);
       begin = input.CurrentPosition()) {
    const bool ok =
        tag == kContentsTag
            ? ReadField(input, [&] { return ParseContents(input, &contents); })
            : SkipField(input, tag) &&
                  head->Copy(begin, input.CurrentPosition());
    if (!ok) return false;
  }
  return input.ConsumedEntireMessage();
}

bool InferMessage::ParseContents(Input& input, Contents* contents) {
  while (const uint32_t tag = ReadTag(input)) {
    const int field = Wire::GetTagFieldNumber(tag);
    const Wire::WireType type = Wire::GetTagWireType(tag);
    const bool packed = type == Wire::WIRETYPE_LENGTH_DELIMITED;
    if (field > Elements::kBytesContentsFieldNumber ||
        !IsElement(field, type)) {
      if (!SkipField(input, tag)) return false;
      continue;
    }
    const int before = input.CurrentPosition();
    bool ok = false;
    if (field == kFloats && packed) {
      ok = ParseFloats(input, contents);
    } else if (field == kFloats) {
      uint32_t word = 0;
      ok = input.ReadLittleEndian32(&word);
      if (contents->in_place_.has_value()) MoveFloats(input, contents);
      contents->floats_.reserve(contents->floats_.size() + sizeof(word) +
                                Left(input));
      AppendWord(word, &contents->floats_);
    } else if (field == kInts) {
      ok = ParseInts(input, packed, contents);
    } else {
      ok = SkipField(input, tag);
    }
    if (!ok) return false;
    // A packed field may be empty: one byte, its length.
    if (!packed || field == Elements::kBytesContentsFieldNumber ||
        input.CurrentPosition() - before > 1) {
      contents->fields_ |= 1U << field;
    }
  }
  return input.ConsumedEntireMessage();
}

bool InferMessage::ParseFloats(Input& input, Contents* contents) {
  int length = 0;
  if (!ReadLength(input, &length) || length % 4 != 0) return false;
  if (length == 0) return true;
  const Data data = {
      .bytes = bytes_.From(static_cast<size_t>(input.CurrentPosition())),
      .size = static_cast<size_t>(length)};
  if (contents->floats_.empty() && !contents->in_place_.has_value()) {
    contents->in_place_ = data;
  } else {
    if (contents->in_place_.has_value()) MoveFloats(input, contents);
    const size_t size = contents->floats_.size();
    contents->floats_.resize(size + data.size);
    data.bytes.CopyTo(contents->floats_.data() + size, data.size);
  }
  return input.Skip(length);
}

bool InferMessage::ParseInts(Input& input, bool packed, Contents* contents) {
  contents->varints_.reserve(contents->varints_.size() + Left(input));
  int begin = 0;
  const auto read = [&] {
    begin = input.CurrentPosition();
    do {
      uint64_t value = 0;
      if (packed && Left(input) == 0) break;
      if (!input.ReadVarint64(&value)) return false;
      ++contents->num_ints_;
    } while (packed);
    return true;
  };
  if (!(packed ? ReadField(input, read) : read())) return false;
  const auto count = static_cast<size_t>(input.CurrentPosition() - begin);
  const size_t size = contents->varints_.size();
  contents->varints_.resize(size + count);
  bytes_.From(static_cast<size_t>(begin))
      .CopyTo(contents->varints_.data() + size, count);
  return true;
}

// More elements follow elsewhere: from here on they are collected.
void InferMessage::MoveFloats(const Input& input, Contents* contents) {
  contents->floats_.reserve(contents->in_place_->size + Left(input));
  contents->floats_.resize(contents->in_place_->size);
  contents->in_place_->bytes.CopyTo(contents->floats_.data(),
                                    contents->floats_.size());
  contents->in_place_.reset();
}

InferMessage::Data InferMessage::FloatsOf(int i) const {
  const Contents& contents = ContentsOf(i);
  if (contents.in_place_.has_value()) return *contents.in_place_;
  return {.bytes = WireBytes(contents.floats_.data()),
          .size = contents.floats_.size()};
}

InferMessage::Data InferMessage::IntsOf(int i) {
  Contents& contents = contents_[static_cast<size_t>(i)];
  std::string& ints = contents.ints_;
  if (ints.empty() && contents.num_ints_ > 0) {
    ints.reserve(4 * contents.num_ints_);
    CodedInputStream input(
        reinterpret_cast<const uint8_t*>(contents.varints_.data()),
        static_cast<int>(contents.varints_.size()));
    for (uint64_t value = 0; input.ReadVarint64(&value);) {
      AppendWord(static_cast<uint32_t>(value), &ints);
    }
  }
  return {.bytes = WireBytes(ints.data()), .size = ints.size()};
}

int64_t InferMessage::copied_bytes() const {
  size_t bytes = 0;
  for (const Contents& contents : contents_) {
    bytes += contents.floats_.size() + contents.varints_.size() +
             contents.ints_.size();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace moe
