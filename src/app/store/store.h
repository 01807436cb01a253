// The models of this machine by name. Below the root:
//
//   manifests/USER/REPO/TAG.json   what a model is; USER is "-" for a name without one
//   models/USER/REPO/TAG/NAME.gguf links to the blobs, under the files' original names
//   blobs/sha256-HEX               the bytes, once however many models share them
//   partial/USER--REPO--TAG/       a download on its way (pull.h, checkpoint.h)
//   shares/USER--REPO--TAG.RANK/   what one rank of a cluster needs of a model (share.h)
//
// INVARIANT: a model exists exactly when its manifest does, and a manifest is written only after its blobs are complete
// and on the disk. A process that is killed at any time leaves the old state or the new one.
// Thread- and process-safety: any thread and process may call every method; changes take the lock of the root.
#pragma once

#include <string>
#include <vector>

#include "app/store/manifest.h"
#include "app/store/name.h"
#include "app/store/recipe.h"
#include "base/status.h"
#include "base/work_grant.h"

namespace millrace::store {

/// What a name or a path resolves to.
struct Resolved {
  std::string path;    // of the GGUF file to open
  bool named = false;  // false: a path; the manifest then has its files alone
  Manifest manifest;
};

/// What processes of clusters fetched of a model (share.h).
struct StoredShares {
  std::string name;  // of the model
  int folders = 0;
  std::uint64_t bytes = 0;  // that they take of the disk
};

class Store {
 public:
  /// MILLRACE_MODELS, else $XDG_DATA_HOME/millrace/models, else ~/.local/share/millrace/models.
  static std::string default_root();
  /// Does not access the disk.
  explicit Store(std::string root = default_root()) : root_(std::move(root)) {}
  const std::string& root() const { return root_; }

  /// A path to a file that exists wins over a name, as does what looks like a path ("./x", "/x", "x.gguf").
  /// Errors: not_found (with what to do), corrupt (a manifest or a file of it is damaged or gone), invalid_argument.
  Expected<Resolved> resolve(const std::string& name_or_path) const;

  /// By name, the newest first. Damaged manifests are logged and left out.
  Expected<std::vector<Manifest>> list() const;
  /// A name without a tag finds "latest", or the only tag there is; the case of letters does not matter.
  /// Errors: not_found, corrupt, invalid_argument.
  /// `grant`, where given, is charged for what the manifest holds, and keeps it; out_of_budget where it refuses.
  Expected<Manifest> find(const std::string& name, WorkGrant* grant = nullptr) const;

  /// All names, in no order; and the name that find() would find.
  Expected<std::vector<Name>> names() const;
  Expected<Name> locate(const std::string& name) const;
  /// Of a name that is here. Errors: as find().
  Expected<ManifestOutline> outline(const Name& name, WorkGrant* grant = nullptr) const;
  std::string manifest_path(const Name& name) const { return root_ + "/manifests/" + name.folder() + ".json"; }

  /// By name.
  std::vector<StoredShares> shares() const;

  /// Blobs that no other model uses go too, and shares of the model. What cannot be read is removed like any other
  /// model. Errors: not_found, io_error (a process uses a share, too).
  Status remove(const std::string& name);
  /// Errors: not_found, invalid_argument, io_error.
  Status copy(const std::string& from, const std::string& to);
  /// Makes (or replaces) a model from a recipe; FROM is a name or a path, relative to `folder`. A GGUF file stays where
  /// it is; of adapters the store keeps copies. Errors: not_found, invalid_argument, corrupt (FROM is no GGUF file),
  /// io_error, and those of keep_adapter().
  Expected<Manifest> create(const std::string& name, const Recipe& recipe, const std::string& folder);
  /// As create(), where FROM is the name of a stored model, or a file that the caller chose: for who takes names from
  /// others, and would not open a path that they write. recipe.from is not looked at.
  /// `memory`, where given, is charged for what adapters take while they are read.
  Expected<Manifest> create_from_name(const std::string& name, const Recipe& recipe, const std::string& base,
                                      WorkGrant* memory = nullptr);
  Expected<Manifest> create_from_file(const std::string& name, const Recipe& recipe, const std::string& path,
                                      WorkGrant* memory = nullptr);

  /// As create(), of a blob that is here, and maybe another one that is its mmproj file. Errors: not_found (a blob),
  /// corrupt (it is no GGUF file of its own), invalid_argument (several models), and those of vision::check_fits.
  Expected<Manifest> create_from_blobs(const std::string& name, const Recipe& recipe, std::vector<ModelFile> files,
                                       WorkGrant* memory = nullptr);

  /// Writes links and manifest of a model whose blobs are in place. Errors: io_error.
  Status publish(const Manifest& manifest);

  std::string blob_path(const std::string& sha256) const { return root_ + "/blobs/sha256-" + sha256; }
  std::string partial_path(const Name& name) const;
  /// Of shares of the model, but for the number of each.
  std::string share_path(const Name& name) const;
  /// Of a model's file: the link in the store, or where it lies.
  std::string file_path(const Name& model, const ModelFile& file) const;

 private:
  Expected<Manifest> read(const Name& name, WorkGrant* grant = nullptr) const;
  Expected<Name> locate(const Name& wanted) const;
  Expected<Manifest> create(const Name& name, const Recipe& recipe, Manifest base, WorkGrant* memory);
  Status check_files(const Manifest& manifest) const;
  Status write_model(const Manifest& manifest);
  std::vector<std::string> linked_blobs(const Name& name) const;
  Expected<bool> remove_shares(const Name& name);
  void collect_garbage(const std::vector<std::string>& candidates);

  std::string root_;
};

}  // namespace millrace::store
