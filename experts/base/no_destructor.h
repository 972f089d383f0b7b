// A static object that is never destroyed.
//
// What is destroyed at exit may still be in use: threads go on while main
// returns, and other objects are destroyed before or after in an order that
// nobody chose. Tables of simple types are constexpr; this is for the others.

#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace moe {

// For `static const NoDestructor<T> object(arguments);`, which the compiler
// makes once, however many threads get there. Access is as safe as to a T.
template <typename T>
class NoDestructor {
 public:
  template <typename... Arguments>
  explicit NoDestructor(Arguments&&... arguments) {
    ::new (static_cast<void*>(memory_))
        T(std::forward<Arguments>(arguments)...);
  }
  NoDestructor(const NoDestructor&) = delete;
  NoDestructor& operator=(const NoDestructor&) = delete;

  const T& operator*() const {
    return *std::launder(reinterpret_cast<const T*>(memory_));
  }
  const T* operator->() const { return &**this; }

 private:
  alignas(T) std::byte memory_[sizeof(T)];
};

}  // namespace moe
