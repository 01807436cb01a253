# Installs Millrace for one user, without an administrator: verifies the zip's SHA-256, unpacks it to
# %LOCALAPPDATA%\Programs\millrace, and puts its bin folder on the user's PATH. Written for Windows PowerShell 5.1 and later.
# Beside the zip:    powershell -ExecutionPolicy Bypass -File install.ps1
# From an address:   $env:MILLRACE_FROM = 'ADDRESS'; irm "$env:MILLRACE_FROM/install.ps1" | iex
# To remove it:      powershell -ExecutionPolicy Bypass -File install.ps1 -Remove
param(
  [string]$From = $env:MILLRACE_FROM,  # a folder, or an address; default: the script's own folder
  [string]$Folder = (Join-Path $env:LOCALAPPDATA 'Programs\millrace'),
  [switch]$Remove
)
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'  # Windows PowerShell 5.1 downloads many times slower with a progress bar
$name = 'millrace-@VERSION@-windows-x86_64'
$bin = Join-Path $Folder 'bin'
$paths = @(([Environment]::GetEnvironmentVariable('Path', 'User') -split ';') | Where-Object { $_ -and $_ -ne $bin })

if ($Remove) {
  if (-not (Test-Path -LiteralPath (Join-Path $bin 'millrace.exe'))) { throw "install.ps1: no Millrace is installed in $Folder" }
  Remove-Item -LiteralPath $Folder -Recurse -Force
  [Environment]::SetEnvironmentVariable('Path', ($paths -join ';'), 'User')
  Write-Output "Removed Millrace from $Folder. Models and caches in $env:LOCALAPPDATA\millrace are still there."
  return
}

if (-not $From) { $From = $PSScriptRoot }
if (-not $From) { throw 'install.ps1: set MILLRACE_FROM to the address or the folder of the zip' }
# Beside where it will be, on the same disk: a folder is moved, never copied.
$work = Join-Path (Split-Path -Parent $Folder) ([IO.Path]::GetRandomFileName())
New-Item -ItemType Directory -Force -Path $work | Out-Null
try {
  $zip = Join-Path $work "$name.zip"
  if ($From -match '^https?://') {
    [Net.ServicePointManager]::SecurityProtocol = [Net.ServicePointManager]::SecurityProtocol -bor [Net.SecurityProtocolType]::Tls12
    Invoke-WebRequest -UseBasicParsing -Uri "$From/$name.zip" -OutFile $zip
  } else {
    Copy-Item -LiteralPath (Join-Path $From "$name.zip") -Destination $zip
  }
  # The script came from the same place as the zip. The sum in it finds a damaged or exchanged file.
  if ((Get-FileHash -Algorithm SHA256 -LiteralPath $zip).Hash -ne '@SHA256@') {
    throw "install.ps1: $name.zip does not have the checksum that this script expects; nothing was installed"
  }
  Expand-Archive -LiteralPath $zip -DestinationPath $work
  # The new version is whole before the old one goes. While a millrace.exe runs, Windows moves neither, and all stays as it was.
  if (Test-Path -LiteralPath $Folder) {
    if (-not (Test-Path -LiteralPath (Join-Path $bin 'millrace.exe'))) { throw "install.ps1: $Folder exists and is not Millrace's" }
    Move-Item -LiteralPath $Folder -Destination (Join-Path $work 'old')
  }
  Move-Item -LiteralPath (Join-Path $work $name) -Destination $Folder
} finally {
  Remove-Item -LiteralPath $work -Recurse -Force
}
[Environment]::SetEnvironmentVariable('Path', (($paths + $bin) -join ';'), 'User')
$env:Path = "$env:Path;$bin"
Write-Output "Installed $(& (Join-Path $bin 'millrace.exe') --version) in $Folder and put it on your PATH."
Write-Output "Try it: millrace run `"$Folder\share\millrace\demo-moe-q4_k_m.gguf`" -p 'What is the capital of France?'"
