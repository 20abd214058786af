package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeDocker keeps the networks of the meshes in a file and prints what a mesh is built with.
const fakeDocker = `#!/bin/bash
case "$1 $2" in
  "network ls") sed 's/.*/id/' "$NETWORKS" ;;
  "network inspect") cat "$NETWORKS" ;;
  "compose up") echo "$COMPOSE_PROJECT_NAME $LAB_NUMBER" >> "$NETWORKS" ;;
  "compose down") sed -i "/^$COMPOSE_PROJECT_NAME /d" "$NETWORKS" ;;
  "compose ps") echo "$COMPOSE_PROJECT_NAME $LAB_NUMBER $LAB_PUBLIC $LAB_PRIVATE" ;;
esac
`

// Each checkout has a mesh of its own: another project, other addresses and another image, which
// stay the same until it is removed. The number of a mesh that was removed is free again.
func TestCheckoutsHaveMeshesOfTheirOwn(t *testing.T) {
	text, err := os.ReadFile("../../scripts/mesh")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("bin/docker", fakeDocker)
	write("networks", "")
	mesh := func(checkout, verb string) (said []string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(root, checkout, "scripts/mesh"), verb)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"), "NETWORKS="+filepath.Join(root, "networks"), "COMPOSE_PROJECT_NAME=", "LAB_NUMBER=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", checkout, verb, err, out)
		}
		return strings.Fields(string(out))
	}
	for _, checkout := range []string{"one/src", "two/src", "three/src"} {
		write(checkout+"/scripts/mesh", string(text))
	}
	mesh("one/src", "up")
	mesh("two/src", "up")
	one, two := mesh("one/src", "ps"), mesh("two/src", "ps")
	for range 2 { // the second one after the mesh of the first one is gone
		for i, want := range []string{"1", "11.0.1", "10.52"} {
			if len(two) != 4 || two[0] == one[0] || two[i+1] != want {
				t.Fatalf("beside %v the second checkout has %v", one, two)
			}
		}
		mesh("one/src", "down")
		two = mesh("two/src", "ps")
	}
	if three := mesh("three/src", "ps"); len(three) != 4 || three[1] != "0" || three[0] == one[0] || three[0] == two[0] {
		t.Errorf("beside %v, without %v, the third checkout has %v", two, one, three)
	}
}
