{{- define "linkwise.labels" -}}
app.kubernetes.io/name: linkwise
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "linkwise.selector" -}}
app.kubernetes.io/name: linkwise
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{/* Names of what is cluster-wide have the release in them, so that two releases do not meet. */}}
{{- define "linkwise.name" -}}
{{- if contains "linkwise" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-linkwise" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "linkwise.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The rights on pods and claims. In mode place the name is the same for all releases: Helm lets one release own it, so that a second one, with a
lease of its own and the same GPUs, is refused. */}}
{{- define "linkwise.placed" -}}
{{- if eq .Values.mode "place" }}linkwise-places-pods{{ else }}{{ include "linkwise.name" . }}-advises{{ end }}
{{- end }}

{{/* The name is in the controller. */}}
{{- define "linkwise.lease" -}}linkwise-controller{{- end }}

{{/* The user name of the controller's service account, as admission policies see it. */}}
{{- define "linkwise.controllerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "linkwise.name" . }}-controller
{{- end }}

{{- define "linkwise.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "linkwise.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where the rights of the account are. No namespace: one empty name, because without the flag every namespace is meant. */}}
{{- define "linkwise.inNamespaces" -}}
{{- range $i, $n := .Values.namespaces | default (list "") }}{{ if $i }}
{{ end }}- --in-namespace={{ $n }}{{ end }}
{{- end }}

{{/* A container whose loop hangs is started again; it is ready by another file where the loop also waits for something. */}}
{{- define "linkwise.probes" -}}
livenessProbe:
  exec: {command: [linkwise-kubernetes, alive, /run/pulse/{{ .alive }}, --within-seconds=120]}
  initialDelaySeconds: 30
  periodSeconds: 30
  timeoutSeconds: 10
readinessProbe:
  exec: {command: [linkwise-kubernetes, alive, /run/pulse/{{ .ready }}, --within-seconds={{ .within }}]}
  periodSeconds: 10
  timeoutSeconds: 10
{{- end }}

{{- define "linkwise.toApiServer" }}
    - ports: [{port: 443, protocol: TCP}, {port: 6443, protocol: TCP}]
      {{- with .Values.networkPolicy.apiServerCidrs }}
      to:
        {{- range . }}
        - ipBlock: {cidr: {{ . | quote }}}
        {{- end }}
      {{- end }}
    - ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
      to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}]
{{- end }}
