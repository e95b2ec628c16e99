// Renders a chart as `helm template` does, by Helm's own engine: the chart's folder as the argument, the values as YAML on standard
// input, the manifests (CRDs first) on standard output. Nothing is looked up in a cluster.
package main

import (
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: render CHART NAMESPACE < VALUES"))
	}
	loaded, err := loader.Load(os.Args[1])
	check(err)
	text, err := io.ReadAll(os.Stdin)
	check(err)
	given, err := chartutil.ReadValues(text)
	check(err)
	check(render(loaded, given, os.Args[2]))
}

func render(loaded *chart.Chart, given chartutil.Values, namespace string) error {
	if err := chartutil.ProcessDependenciesWithMerge(loaded, given); err != nil {
		return err
	}
	release := chartutil.ReleaseOptions{Name: "lattice", Namespace: namespace, Revision: 1, IsInstall: true}
	values, err := chartutil.ToRenderValues(loaded, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		return err
	}
	files, err := engine.Render(loaded, values)
	if err != nil {
		return err
	}
	for _, crd := range loaded.CRDObjects() {
		fmt.Printf("---\n# Source: %s\n%s\n", crd.Filename, crd.File.Data)
	}
	for _, name := range sorted(files) {
		fmt.Printf("---\n# Source: %s\n%s\n", name, files[name])
	}
	return nil
}

// sorted gives the names of the files that hold manifests.
func sorted(files map[string]string) []string {
	names := []string{}
	for name, text := range files {
		hidden := strings.HasPrefix(path.Base(name), "_") || path.Base(name) == "NOTES.txt"
		if !hidden && strings.TrimSpace(text) != "" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "Error:", err)
	os.Exit(1)
}
