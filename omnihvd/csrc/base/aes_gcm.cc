#include "base/aes_gcm.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "base/own_process.h"

namespace omnihvd {
namespace {

// The constants and functions of <openssl/evp.h> used here. OpenSSL 1.1 and 3 agree on them.
constexpr int kSetTag = 0x11, kGetTag = 0x10;  // EVP_CTRL_AEAD_*
struct Libcrypto {
  void* (*new_context)();
  void (*free_context)(void*);
  const void* (*aes_128_gcm)();
  int (*init)(void* context, const void* cipher, void* engine, const uint8_t* key,
              const uint8_t* nonce, int encrypt);
  int (*update)(void* context, uint8_t* out, int* written, const uint8_t* in, int size);
  int (*final)(void* context, uint8_t* out, int* written);
  int (*control)(void* context, int what, int size, void* value);
};

// At exit libcrypto is torn down before the engine's threads end. Our exit handler is registered
// after libcrypto's, so it runs first and keeps the threads out.
constexpr int kClosed = INT_MIN / 2;
std::atomic<int> users{0};
class InUse {
 public:
  InUse() : open_(users.fetch_add(1, std::memory_order_acquire) >= 0) {}
  ~InUse() { users.fetch_sub(1, std::memory_order_release); }
  explicit operator bool() const { return open_; }

 private:
  const bool open_;
};
const OwnProcess& process() {
  static const OwnProcess process;
  return process;
}
void close_at_exit() {
  users += kClosed;
  while (process().is_this() && users != kClosed) std::this_thread::yield();
}

template <typename Function>
void look_up(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (!*function)
    throw Error(std::string("OpenSSL's libcrypto lacks ") + name + ": install another build of it");
}

// Prefers a libcrypto that the process has already loaded (Python's ssl, for example) over the
// system's.
void* open_library() {
  for (const int flags : {RTLD_LAZY | RTLD_NOLOAD, RTLD_LAZY})
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"})
      if (void* library = dlopen(name, flags)) return library;
  throw Error(
      "OMNIHVD_ENCRYPT=1 needs OpenSSL's libcrypto (libcrypto.so.3 or .1.1), which was not found: "
      "install it, or, in a network that you trust, leave the setting out");
}

const Libcrypto& libcrypto() {
  static const Libcrypto functions = [] {
    void* library = open_library();
    Libcrypto f{};
    look_up(library, "EVP_CIPHER_CTX_new", &f.new_context);
    look_up(library, "EVP_CIPHER_CTX_free", &f.free_context);
    look_up(library, "EVP_aes_128_gcm", &f.aes_128_gcm);
    look_up(library, "EVP_CipherInit_ex", &f.init);
    look_up(library, "EVP_CipherUpdate", &f.update);
    look_up(library, "EVP_CipherFinal_ex", &f.final);
    look_up(library, "EVP_CIPHER_CTX_ctrl", &f.control);
    f.free_context(f.new_context());  // libcrypto registers its handler
    process();
    std::atexit(close_at_exit);
    return f;
  }();
  return functions;
}

struct Nonce {
  uint32_t zero = 0;
  uint64_t number;
} __attribute__((packed));
static_assert(sizeof(Nonce) == 12);

bool begin(void* context, uint64_t number, int encrypt) {
  const Nonce nonce{0, number};
  return libcrypto().init(context, nullptr, nullptr, nullptr,
                          reinterpret_cast<const uint8_t*>(&nonce), encrypt) == 1;
}

// `out` null: authenticates only.
bool put(void* context, const void* data, size_t size, uint8_t* out) {
  const uint8_t* in = static_cast<const uint8_t*>(data);
  while (size > 0) {
    const int part = static_cast<int>(std::min<size_t>(size, 1 << 30));
    int written;
    if (libcrypto().update(context, out, &written, in, part) != 1) return false;
    in += part;
    if (out) out += part;
    size -= part;
  }
  return true;
}

bool end(void* context) {
  uint8_t none[16];
  int written;
  return libcrypto().final(context, none, &written) == 1;
}

}  // namespace

AesGcm::AesGcm(const std::string& key) {
  OMNIHVD_INVARIANT(key.size() == kKeyBytes);
  const Libcrypto& crypto = libcrypto();
  const InUse in_use;
  if (!in_use) return;
  context_ = crypto.new_context();
  if (!context_ || crypto.init(context_, crypto.aes_128_gcm(), nullptr,
                               reinterpret_cast<const uint8_t*>(key.data()), nullptr, 1) != 1)
    throw Error("OpenSSL's libcrypto offers no AES-GCM here: install another build of it");
}

AesGcm::~AesGcm() {
  const InUse in_use;
  if (in_use && context_) libcrypto().free_context(context_);
}

bool AesGcm::encrypt(uint64_t number, Slice head, const std::vector<Slice>& slices, uint8_t* out,
                     uint8_t* tag) {
  const InUse in_use;
  if (!in_use || !begin(context_, number, 1)) return false;
  if (!put(context_, head.data, head.size, nullptr)) return false;
  for (const Slice& slice : slices) {
    if (!put(context_, slice.data, slice.size, out)) return false;
    out += slice.size;
  }
  return end(context_) && libcrypto().control(context_, kGetTag, int(kTagBytes), tag) == 1;
}

bool AesGcm::decrypt(uint64_t number, Slice head, Slice in, uint8_t* out, const uint8_t* tag) {
  const InUse in_use;
  if (!in_use || !begin(context_, number, 0)) return false;
  return libcrypto().control(context_, kSetTag, int(kTagBytes), const_cast<uint8_t*>(tag)) == 1 &&
         put(context_, head.data, head.size, nullptr) && put(context_, in.data, in.size, out) &&
         end(context_);
}

}  // namespace omnihvd
